/**
 * The engine in a worker process, seen from the gateway. It owns its channel and the queues of live requests; it knows
 * neither how the worker is started nor that it will be started again.
 */
import { SkeinError } from '../../errors.ts'
import type { EngineClient } from '../client.ts'
import { lineFull } from '../limits.ts'
import type {
  EngineCall,
  EngineCalls,
  EngineEvent,
  EngineInfo,
  FromWorker,
  GenerateRequest,
  ToWorker,
} from '../messages.ts'
import { type EngineStats, idleStats } from '../stats.ts'
import type { Channel } from './channel.ts'
import { EventQueue, LiveQueues } from './event-queues.ts'

/** Each of them writes to its client: a millisecond or two for all. */
const WOKEN_AT_ONCE = 64

type WorkerChannel = Channel<ToWorker, FromWorker>

export class RemoteEngineClient implements EngineClient {
  #info: EngineInfo
  readonly #channel: WorkerChannel
  readonly #queues = new LiveQueues(WOKEN_AT_ONCE)
  readonly #calls = new Map<number, { resolve(value: unknown): void; reject(error: SkeinError): void }>()
  readonly #closed: Promise<void>
  #numCalls = 0
  #stats: EngineStats
  #numRequests = 0
  /** Since the last message. */
  #cancelled: string[] = []
  #isClosing = false
  /** The same for all: an error with its stack takes a tenth of a refusal's time. */
  #lineFull: SkeinError | null = null
  /** Why nothing can be asked any more. */
  #failure: SkeinError | null = null

  /** For a channel whose worker has said it is ready. */
  constructor(channel: WorkerChannel, info: EngineInfo) {
    this.#info = info
    this.#channel = channel
    this.#stats = idleStats(info.numSlots)
    channel.onMessage((message) => this.#receive(message))
    this.#closed = new Promise((resolve) => {
      channel.onClose((reason) => {
        this.#fail(this.#endedError(reason))
        resolve()
      })
    })
  }

  /** Waits until the worker has loaded its model. Throws what it died of, if it does. */
  static connect(
    channel: WorkerChannel,
    onProgress: (doneBytes: number, totalBytes: number) => void = () => {},
    onStage: (text: string) => void = () => {},
  ): Promise<RemoteEngineClient> {
    return new Promise((resolve, reject) => {
      channel.onMessage((message) => {
        if (message.type === 'ready') resolve(new RemoteEngineClient(channel, message.info))
        else if (message.type === 'fatal') reject(SkeinError.fromShape(message.error))
        else if (message.type === 'progress') onProgress(message.doneBytes, message.totalBytes)
        else if (message.type === 'stage') onStage(message.text)
      })
      channel.onClose((reason) => {
        reject(new SkeinError('model_not_loaded', `the worker ended while it was loading (${reason})`))
      })
    })
  }

  /** The worker's description as it is now: start states come and go. */
  get info(): EngineInfo {
    return this.#info
  }

  get stats(): EngineStats {
    return this.#stats
  }

  /**
   * The worker knows each request by an id of ours: events of a cancelled request may still be on their way here when
   * its caller's id is used again.
   */
  generate(request: GenerateRequest, signal?: AbortSignal): AsyncIterable<EngineEvent> {
    this.#numRequests++
    // In every event of it, so a short one.
    const id = String(this.#numRequests)
    const cancel = () => {
      if (this.#queues.remove(id, queue)) this.#cancel(id)
    }
    const queue = new EventQueue(request.n, cancel, signal)
    if (queue.isOver) return queue
    if (this.#failure !== null) {
      queue.fail(this.#failure)
      return queue
    }
    const { tenant = '' } = request
    const refusal = this.refusalOf(tenant)
    if (refusal !== null) {
      queue.fail(refusal)
      return queue
    }
    this.#queues.add(id, request.id, queue, tenant)
    this.#channel.send({ type: 'generate', request: { ...request, id } })
    return queue
  }

  /**
   * The worker would say the same, after its step and for the work of a message: with so many of its own, no tenant is under
   * its part.
   */
  refusalOf(tenant: string): SkeinError | null {
    const { numSlots, maxWaiting } = this.#info
    if (this.#queues.numOf(tenant) < numSlots + maxWaiting) return null
    this.#lineFull ??= lineFull(maxWaiting)
    return this.#lineFull
  }

  /** The rows of a call whose client leaves are cancelled at once: in one message. */
  #cancel(id: string): void {
    this.#cancelled.push(id)
    if (this.#cancelled.length > 1) return
    queueMicrotask(() => {
      const ids = this.#cancelled
      this.#cancelled = []
      this.#channel.send({ type: 'cancel', ids })
    })
  }

  async call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']> {
    if (this.#failure !== null) {
      // Until then the worker may still be saving what is asked for, and nobody else has it.
      await this.#closed
      throw this.#failure
    }
    this.#numCalls++
    const id = this.#numCalls
    // A member of the union for each M, which a generic M hides.
    this.#channel.send({ type: 'call', id, method, params } as ToWorker)
    const value = new Promise<unknown>((resolve, reject) => this.#calls.set(id, { resolve, reject }))
    // The worker answers a method with its result of the same table.
    const result = (await value) as EngineCalls[M]['result']
    if (method === 'startStates.add' || method === 'startStates.remove')
      this.#info = { ...this.#info, startStates: result as readonly string[] }
    return result
  }

  /** Asks the worker to end, dropping what is live, and waits until it has gone. */
  async close(): Promise<void> {
    if (!this.#isClosing) {
      this.#isClosing = true
      this.#channel.send({ type: 'shutdown' })
    }
    await this.#closed
  }

  #receive(message: FromWorker): void {
    switch (message.type) {
      case 'step':
        this.#stats = message.stats ?? this.#stats
        this.#queues.deliver(message.events)
        break
      case 'fatal':
        // What has begun ends with events that follow. All else that it was asked ends with the channel, and can be repeated.
        this.#failure ??= new SkeinError('model_not_loaded', 'the model failed before this request had begun; retry')
        break
      case 'result':
        this.#settle(message)
        break
      case 'progress':
      case 'stage':
      case 'ready':
        break
      default:
        message satisfies never
    }
  }

  #settle(result: FromWorker & { type: 'result' }): void {
    const pending = this.#calls.get(result.id)
    this.#calls.delete(result.id)
    if ('error' in result) pending?.reject(SkeinError.fromShape(result.error))
    else pending?.resolve(result.value)
  }

  #fail(error: SkeinError): void {
    this.#failure ??= error
    this.#queues.failAll(error)
    for (const { reject } of this.#calls.values()) reject(error)
    this.#calls.clear()
    const { numSlots } = this.#stats
    const idle = { waiting: 0, running: 0, prefilling: 0, freeSlots: numSlots }
    this.#stats = { ...this.#stats, ...idle }
  }

  #endedError(reason: string): SkeinError {
    const message = this.#isClosing
      ? 'the model was unloaded'
      : `the worker process ended (${reason}); it is being restarted; retry`
    return new SkeinError('model_not_loaded', message)
  }
}
