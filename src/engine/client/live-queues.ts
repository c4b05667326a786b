/**
 * The queues of a client's live requests, by the id that the engine knows each by. An event of a request that is no
 * longer here, because its consumer left, is dropped.
 *
 * A step of an engine has something for every consumer, and each has work to do with it. So only some are woken at a
 * time, and the event loop turns before the next are. What comes meanwhile joins what they wait for: when there is more
 * than this process can do, consumers get several tokens at once instead of every one later and later.
 */
import type { SkeinError } from '../../errors.ts'
import type { EngineEvent } from '../messages.ts'
import type { EventQueue } from './event-queue.ts'

interface Entry {
  readonly queue: EventQueue
  /** The id that the caller gave. */
  readonly callerId: string
  readonly tenant: string
}

export class LiveQueues {
  readonly #entries = new Map<string, Entry>()
  readonly #perTenant = new Map<string, number>()
  readonly #atOnce: number
  /** Queues whose consumers have not been woken since something came, in turn. */
  readonly #unread = new Set<EventQueue>()
  #isWaking = false

  /** `atOnce`: consumers woken in one turn of the event loop. */
  constructor(atOnce = Number.POSITIVE_INFINITY) {
    this.#atOnce = atOnce
  }

  get size(): number {
    return this.#entries.size
  }

  /** Of those that are here. */
  numOf(tenant: string): number {
    return this.#perTenant.get(tenant) ?? 0
  }

  add(engineId: string, callerId: string, queue: EventQueue, tenant = ''): void {
    this.#entries.set(engineId, { queue, callerId, tenant })
    this.#perTenant.set(tenant, this.numOf(tenant) + 1)
  }

  /** Forgets a queue; false when it is not here under this id. */
  remove(engineId: string, queue: EventQueue): boolean {
    const isHere = this.#entries.get(engineId)?.queue === queue
    if (isHere) this.#forget(engineId)
    return isHere
  }

  deliver(events: readonly EngineEvent[]): void {
    for (const event of events) {
      const { id: engineId } = event
      const entry = this.#entries.get(engineId)
      if (entry === undefined) continue
      const { queue, callerId } = entry
      // An event is nobody else's, and a copy of every one would take as long as all of this.
      if (callerId !== engineId) (event as { id: string }).id = callerId
      queue.push(event)
      this.#unread.add(queue)
      if (queue.isOver) this.#forget(engineId)
    }
    if (!this.#isWaking) this.#wake()
  }

  failAll(error: SkeinError): void {
    for (const { queue } of this.#entries.values()) queue.fail(error)
    this.#entries.clear()
    this.#perTenant.clear()
  }

  #forget(engineId: string): void {
    const entry = this.#entries.get(engineId)
    if (entry === undefined) return
    this.#entries.delete(engineId)
    const { tenant } = entry
    const left = this.numOf(tenant) - 1
    if (left > 0) this.#perTenant.set(tenant, left)
    else this.#perTenant.delete(tenant)
  }

  #wake(): void {
    let count = 0
    for (const queue of this.#unread) {
      if (count === this.#atOnce) break
      count++
      this.#unread.delete(queue)
      queue.wake()
    }
    this.#isWaking = this.#unread.size > 0
    if (this.#isWaking) setImmediate(() => this.#wake())
  }
}
