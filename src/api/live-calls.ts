/**
 * The calls under way and those that were paused, per tenant, so that /v1/server/* can stop, pause and resume them by
 * name, and DELETE /v1/requests/{id} can end one. It owns no engine: ending a call aborts its signal, and what was paused
 * is the prompts with the tokens drawn so far, which is all that a recurrent model needs to go on.
 */
import type { GenerateRequest } from '../engine/messages.ts'
import { SkeinError } from '../errors.ts'

type Ending = 'stopped' | 'paused'

export interface LiveCall {
  readonly id: string
  readonly tenant: string
  readonly path: string
  readonly model: string
  readonly numRows: number
  /** Whether its rows are kept so that they can go on. */
  readonly canPause: boolean
  /** Milliseconds since 1970. */
  readonly startedAt: number
}

/** An unfinished row: the request that would continue it. */
export interface PausedRow {
  readonly index: number
  readonly request: GenerateRequest
  /** Text already sent whose token must be drawn again: cut off where the new text begins with it. */
  readonly overlap: string
}

/** Text of a row that was drawn and that its client has not seen. */
interface OwedText {
  readonly index: number
  readonly content: string
}

export interface PausedCall {
  readonly id: string
  readonly tenant: string
  /** The path of the call that was paused first. */
  readonly path: string
  readonly model: string
  readonly chunkSize: number
  readonly rows: readonly PausedRow[]
  /** The texts of all its rows, ended ones included: a reply that is not a stream shows nothing of a paused call. */
  readonly owed: readonly OwedText[]
}

export interface LiveHandle {
  readonly signal: AbortSignal
  readonly ending: Ending | null
  /** The error for the client: if the call was stopped, it says so. */
  failureOf(thrown: unknown): unknown
  leave(): void
}

interface Entry {
  readonly call: LiveCall
  readonly controller: AbortController
  ending: Ending | null
}

/** Paused calls kept, and what they may take of memory, per tenant and of all; the oldest is forgotten first. */
export const MAX_PAUSED = 64
const MAX_BYTES = 16 * 2 ** 20
const MAX_BYTES_OF_ALL = 128 * 2 ** 20
/** Nobody resumes a call that was paused longer ago. */
const MAX_AGE_MS = 60 * 60 * 1000

interface Kept {
  readonly call: PausedCall
  readonly bytes: number
  /** Milliseconds of the monotonic clock. */
  readonly at: number
}

export class LiveCalls {
  readonly #live = new Map<string, Entry>()
  /** In the order of pausing. */
  readonly #paused = new Map<string, Kept>()
  readonly #now: () => number

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /**
   * `signal` is the client's. Throws `conflict` if the tenant has a live call of that id, or a paused one that this does not
   * resume.
   */
  enter(call: LiveCall, signal: AbortSignal, isResumed = false): LiveHandle {
    const key = keyOf(call)
    this.#forgetOld()
    if (!isResumed && this.#paused.has(key)) {
      const message = 'request_id: a request of that id is paused; resume or stop it, or choose another'
      throw new SkeinError('conflict', message, { param: 'request_id' })
    }
    if (this.#live.has(key))
      throw new SkeinError('conflict', 'request_id: a request of that id is under way', { param: 'request_id' })
    const entry: Entry = { call, controller: new AbortController(), ending: null }
    this.#live.set(key, entry)
    return {
      signal: AbortSignal.any([signal, entry.controller.signal]),
      get ending() {
        return entry.ending
      },
      failureOf: (thrown) => (entry.ending === 'stopped' ? new SkeinError('conflict', 'Request cancelled') : thrown),
      leave: () => this.#live.delete(key),
    }
  }

  /** Oldest first. */
  live(tenant: string): LiveCall[] {
    return [...this.#live.values()].map(({ call }) => call).filter((call) => call.tenant === tenant)
  }

  pausedOf(tenant: string, id: string): PausedCall | null {
    this.#forgetOld()
    return this.#paused.get(keyOf({ tenant, id }))?.call ?? null
  }

  paused(tenant: string): PausedCall[] {
    this.#forgetOld()
    return this.#keptOf(tenant).map(({ call }) => call)
  }

  /** False if there is no such call. */
  end(tenant: string, id: string, ending: Ending): boolean {
    const entry = this.#live.get(keyOf({ tenant, id }))
    if (entry === undefined) return false
    // Stopping a call that is being paused drops what would have been resumed.
    if (entry.ending === null || ending === 'stopped') entry.ending = ending
    entry.controller.abort()
    return true
  }

  /** False if it is too large to be kept. */
  keep(call: PausedCall): boolean {
    const bytes = bytesOf(call)
    if (bytes > MAX_BYTES) return false
    this.#forgetOld()
    this.#paused.set(keyOf(call), { call, bytes, at: this.#now() })
    const fits = (kept: readonly Kept[], most: number) =>
      kept.length <= MAX_PAUSED && kept.reduce((sum, one) => sum + one.bytes, 0) <= most
    while (!fits(this.#keptOf(call.tenant), MAX_BYTES)) this.#forgetFirst(call.tenant)
    while ([...this.#paused.values()].reduce((sum, one) => sum + one.bytes, 0) > MAX_BYTES_OF_ALL) this.#forgetFirst()
    return true
  }

  #keptOf(tenant: string): Kept[] {
    return [...this.#paused.values()].filter(({ call }) => call.tenant === tenant)
  }

  /** In the order of pausing. */
  #forgetFirst(tenant?: string): void {
    for (const [key, { call }] of this.#paused) {
      if (tenant !== undefined && call.tenant !== tenant) continue
      this.#paused.delete(key)
      return
    }
  }

  #forgetOld(): void {
    for (const [key, { at }] of this.#paused) {
      if (this.#now() - at <= MAX_AGE_MS) return
      this.#paused.delete(key)
    }
  }

  /** Forgets a paused call. False if there is none of that id. */
  drop(tenant: string, id: string): boolean {
    return this.#paused.delete(keyOf({ tenant, id }))
  }
}

function keyOf({ tenant, id }: { readonly tenant: string; readonly id: string }): string {
  return `${tenant} ${id}`
}

/** Bytes of prompts and texts, with the overhead of each row. */
function bytesOf({ rows, owed }: PausedCall): number {
  const ofRow = ({ request, overlap }: PausedRow) =>
    1024 + request.prompt.byteLength + (request.promptAtBeginning?.byteLength ?? 0) + 2 * overlap.length
  const texts = owed.reduce((sum, { content }) => sum + 2 * content.length, 0)
  return rows.reduce((sum, row) => sum + ofRow(row), texts)
}
