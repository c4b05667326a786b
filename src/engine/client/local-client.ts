/**
 * The engine in the caller's own process: for the library, the `generate` command, benches and tests. It turns the
 * engine in a setImmediate loop, so that input and output of the process go on between any two steps. It owns the
 * engine. A long step does block the process; a server uses remote-client.ts.
 */
import { SkeinError } from '../../errors.ts'
import type { EngineClient } from '../client.ts'
import type { Engine } from '../engine.ts'
import type { EngineCall, EngineCalls, EngineEvent, EngineInfo, GenerateRequest } from '../messages.ts'
import type { EngineStats } from '../stats.ts'
import { EventQueue, LiveQueues } from './event-queues.ts'

export class LocalEngineClient implements EngineClient {
  readonly #engine: Engine
  readonly #queues = new LiveQueues()
  #isScheduled = false
  #isClosed = false

  constructor(engine: Engine) {
    this.#engine = engine
    engine.onWake = () => this.#schedule()
  }

  get info(): EngineInfo {
    return this.#engine.info
  }

  get stats(): EngineStats {
    return this.#engine.stats
  }

  generate(request: GenerateRequest, signal?: AbortSignal): AsyncIterable<EngineEvent> {
    const { id } = request
    const cancel = () => {
      if (this.#queues.remove(id, queue)) this.#engine.cancel(id)
    }
    const queue = new EventQueue(request.n, cancel, signal)
    if (queue.isOver) return queue
    try {
      this.#engine.submit(request)
      this.#queues.add(id, id, queue)
      this.#schedule()
    } catch (error) {
      queue.fail(SkeinError.from(error))
    }
    return queue
  }

  call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']> {
    return this.#engine.call(method, params)
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#queues.failAll(new SkeinError('aborted', 'the engine was closed'))
    await this.#engine.close()
  }

  #schedule(): void {
    if (this.#isScheduled || this.#isClosed || !this.#engine.hasWork) return
    this.#isScheduled = true
    setImmediate(() => this.#turn())
  }

  #turn(): void {
    this.#isScheduled = false
    if (this.#isClosed) return
    this.#queues.deliver(this.#engine.turn() ?? [])
    this.#schedule()
  }
}
