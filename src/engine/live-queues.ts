/**
 * The queues of a client's live requests, by the id that the engine knows each by. An event of a request that is no
 * longer here, because its consumer left, is dropped.
 */
import type { SkeinError } from '../errors.ts'
import type { EventQueue } from './event-queue.ts'
import type { EngineEvent } from './messages.ts'

interface Entry {
  readonly queue: EventQueue
  /** The id that the caller gave. */
  readonly callerId: string
}

export class LiveQueues {
  readonly #entries = new Map<string, Entry>()

  get size(): number {
    return this.#entries.size
  }

  add(engineId: string, callerId: string, queue: EventQueue): void {
    this.#entries.set(engineId, { queue, callerId })
  }

  /** Forgets a queue; false when it is not here under this id. */
  remove(engineId: string, queue: EventQueue): boolean {
    return this.#entries.get(engineId)?.queue === queue && this.#entries.delete(engineId)
  }

  deliver(event: EngineEvent): void {
    const entry = this.#entries.get(event.id)
    if (entry === undefined) return
    const { queue, callerId } = entry
    queue.push(callerId === event.id ? event : { ...event, id: callerId })
    if (queue.isOver) this.#entries.delete(event.id)
  }

  failAll(error: SkeinError): void {
    for (const { queue } of this.#entries.values()) queue.fail(error)
    this.#entries.clear()
  }
}
