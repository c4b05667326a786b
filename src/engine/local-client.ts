/**
 * The engine in the caller's own process: for the library, the `generate` command, benches and tests. It steps the
 * engine in a setImmediate loop, so that input and output of the process go on between any two steps. It owns the
 * engine. A long step does block the process; a server uses remote-client.ts.
 */
import { SkeinError } from '../errors.ts'
import type { EngineClient } from './client.ts'
import type { Engine } from './engine.ts'
import { EventQueue } from './event-queue.ts'
import type { EngineEvent, EngineInfo, EngineStats, GenerateRequest } from './messages.ts'

export class LocalEngineClient implements EngineClient {
  readonly #engine: Engine
  readonly #queues = new Map<string, EventQueue>()
  #isScheduled = false
  #isClosed = false

  constructor(engine: Engine) {
    this.#engine = engine
  }

  get info(): EngineInfo {
    return this.#engine.info
  }

  get stats(): EngineStats {
    return this.#engine.stats
  }

  generate(request: GenerateRequest, signal?: AbortSignal): AsyncIterable<EngineEvent> {
    const cancel = () => {
      if (this.#queues.get(request.id) !== queue) return
      this.#queues.delete(request.id)
      this.#engine.cancel(request.id)
    }
    const queue = new EventQueue(request.n, cancel, signal)
    if (queue.isOver) return queue
    try {
      this.#engine.submit(request)
      this.#queues.set(request.id, queue)
      this.#schedule()
    } catch (error) {
      queue.fail(SkeinError.from(error))
    }
    return queue
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#failAll(new SkeinError('aborted', 'the engine was closed'))
    this.#engine.dispose()
  }

  #schedule(): void {
    if (this.#isScheduled || !this.#engine.hasWork) return
    this.#isScheduled = true
    setImmediate(() => this.#turn())
  }

  #turn(): void {
    this.#isScheduled = false
    if (this.#isClosed) return
    for (const event of this.#engine.step()) this.#deliver(event)
    if (this.#engine.failure !== null) this.#failAll(this.#engine.failure)
    this.#schedule()
  }

  #deliver(event: EngineEvent): void {
    const queue = this.#queues.get(event.id)
    if (queue === undefined) return
    queue.push(event)
    if (queue.isOver) this.#queues.delete(event.id)
  }

  #failAll(error: SkeinError): void {
    for (const queue of this.#queues.values()) queue.fail(error)
    this.#queues.clear()
  }
}
