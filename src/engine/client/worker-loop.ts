/**
 * The life of an engine in a worker: messages in, steps while there is work, one message out per step. Between any two
 * steps, and while one is waited for, the event loop turns, so a cancel is seen before the next one. It does not know
 * what carries the messages, nor does it end the process: whoever started it does, with the exit code that it returns.
 */
import { SkeinError } from '../../errors.ts'
import type { Engine } from '../engine.ts'
import type { EngineEvent, FromWorker, GenerateRequest, ToWorker } from '../messages.ts'
import type { Channel } from './channel.ts'

/** Saving many states takes long; the counters tell the gateway that it goes on. */
const COUNTERS_WHILE_CLOSING_MS = 250

/** How often an engine without requests prepares something. */
const PREPARE_EVERY_MS = 20

/** Serves until shutdown, the loss of the gateway (0) or a broken step (1). The engine is its own. */
export function serveEngine(engine: Engine, channel: Channel<FromWorker, ToWorker>): Promise<number> {
  return new Promise((resolve) => new WorkerLoop(engine, channel, resolve).start())
}

class WorkerLoop {
  readonly #engine: Engine
  readonly #channel: Channel<FromWorker, ToWorker>
  readonly #resolve: (exitCode: number) => void
  /** Errors of requests that were never admitted; they leave with the next step. */
  #refused: EngineEvent[] = []
  #isScheduled = false
  /** Ends the pause while a long step is on its way. */
  #rest: NodeJS.Timeout | null = null
  #isDraining = false
  #isOver = false

  constructor(engine: Engine, channel: Channel<FromWorker, ToWorker>, resolve: (exitCode: number) => void) {
    this.#engine = engine
    this.#channel = channel
    this.#resolve = resolve
  }

  start(): void {
    this.#engine.onWake = () => this.#schedule()
    this.#channel.onMessage((message) => this.#receive(message))
    this.#channel.onClose(() => this.#end(0))
    this.#channel.send({ type: 'ready', info: this.#engine.info })
    const preparing = setInterval(() => {
      if (this.#isOver || (this.#engine.isIdle && !this.#engine.prepare())) clearInterval(preparing)
    }, PREPARE_EVERY_MS).unref()
  }

  #receive(message: ToWorker): void {
    if (this.#isOver) return
    switch (message.type) {
      case 'generate':
        this.#submit(message.request)
        break
      case 'cancel':
        for (const id of message.ids) this.#engine.cancel(id)
        break
      case 'ping':
        this.#post([])
        return
      case 'call':
        void this.#answer(message)
        break
      case 'shutdown':
        this.#shutDown(message.drain === true)
        return
      default:
        message satisfies never
    }
    this.#schedule()
  }

  #submit(request: GenerateRequest): void {
    try {
      if (this.#isDraining) throw shuttingDown()
      this.#engine.submit(request)
    } catch (error) {
      this.#refused.push(errorEvent(request.id, SkeinError.from(error)))
    }
  }

  async #answer({ id, method, params }: ToWorker & { type: 'call' }): Promise<void> {
    try {
      const value = await this.#engine.call(method, params)
      this.#channel.send({ type: 'result', id, value })
    } catch (error) {
      // What a broken or closed engine has saved is the next one's when the channel has closed; that is the answer then.
      if (this.#engine.failure !== null) return
      this.#channel.send({ type: 'result', id, error: SkeinError.from(error).toShape() })
    }
  }

  #schedule(): void {
    if (this.#isScheduled || this.#isOver) return
    if (this.#rest !== null) clearTimeout(this.#rest)
    this.#rest = null
    this.#isScheduled = true
    const room = this.#channel.room?.() ?? null
    if (room === null) setImmediate(() => this.#turn())
    else void room.then(() => setImmediate(() => this.#turn()))
  }

  /** A step that is far from over leaves the processor to others; one that is nearly over is asked again and again. */
  #scheduleAfterRest(): void {
    const restMs = Math.floor(this.#engine.restMs)
    if (restMs < 1) this.#schedule()
    else this.#rest = setTimeout(() => this.#schedule(), restMs)
  }

  /** With nothing to run this still sends the counters, which a cancel has changed. */
  #turn(): void {
    this.#isScheduled = false
    if (this.#isOver) return
    const largeRoom = this.#channel.largeRoom?.() ?? null
    this.#engine.holdsWide = largeRoom !== null
    const events = this.#engine.turn()
    const { failure, hasWork, isHeld } = this.#engine
    // Before the errors of its requests: some are repeated at once, and not here.
    if (failure !== null) this.#channel.send({ type: 'fatal', error: failure.toShape() })
    if (events !== null || this.#refused.length > 0) {
      this.#post([...this.#refused, ...(events ?? [])])
      this.#refused = []
    }
    if (failure !== null) this.#end(1)
    else if (isHeld && largeRoom !== null) void largeRoom.then(() => this.#schedule())
    else if (hasWork && events === null) this.#scheduleAfterRest()
    else if (hasWork) this.#schedule()
    else if (this.#isDraining && this.#engine.isIdle) this.#end(0)
  }

  #post(events: readonly EngineEvent[]): void {
    this.#channel.send({ type: 'step', events, stats: this.#engine.stats })
  }

  #shutDown(drain: boolean): void {
    if (drain && !this.#engine.isIdle) {
      this.#isDraining = true
      return
    }
    const ids = this.#engine.liveIds
    for (const id of ids) this.#engine.cancel(id)
    this.#post([...this.#refused, ...ids.map((id) => errorEvent(id, shuttingDown()))])
    this.#end(0)
  }

  #end(exitCode: number): void {
    if (this.#isOver) return
    this.#isOver = true
    void this.#close().then((isSaved) => this.#resolve(isSaved ? exitCode : 1))
  }

  /** False when states of sessions were lost. */
  async #close(): Promise<boolean> {
    let isSaved = true
    const beat = setInterval(() => this.#post([]), COUNTERS_WHILE_CLOSING_MS)
    try {
      await this.#engine.close()
    } catch (error) {
      isSaved = false
      process.stderr.write(`skein: ${SkeinError.from(error).message}\n`)
    } finally {
      clearInterval(beat)
    }
    await this.#channel.close()
    return isSaved
  }
}

function errorEvent(id: string, error: SkeinError): EngineEvent {
  return { type: 'error', id, error: error.toShape() }
}

function shuttingDown(): SkeinError {
  return new SkeinError('model_not_loaded', 'the worker is shutting down; retry elsewhere or later')
}
