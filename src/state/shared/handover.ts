/**
 * States of sessions that change hands: offered by the worker that lets go, fetched by the one that gets the session, from
 * memory to memory. It is a shortcut and decides nothing: whose a session is the database says, what its state is the key
 * says, and whatever does not come by this way is read from the storage.
 */

import { request as ask, type IncomingMessage } from 'node:http'
import { request as askOverTls } from 'node:https'
import type { Connection } from '../../cluster/database.ts'
import { CALLER_HEADER, type MemberSeal } from '../../cluster/member-seal.ts'
import { noteMove } from '../../cluster/moves.ts'
import { STATES_PATH } from '../../cluster/state-socket.ts'
import type { StoredSession } from '../store/store.ts'
import { Offers } from './offers.ts'

/** A state that this worker may ask for, since it has the session now. */
export interface Coming {
  readonly session: string
  readonly bytes: number
  readonly from: string
  /** Null: it is small, or its worker has gone. */
  readonly url: string | null
  readonly since: number
}

interface HandoverOptions {
  readonly database: Connection
  /** This one, and the model of its sessions. */
  readonly worker: string
  readonly model: string
  readonly seal: MemberSeal
  /** Smaller states come with a row of the database, which is as quick. */
  readonly minBytes: number
  /** How long a state is offered, and how long one is waited for. */
  readonly offerMs?: number | undefined
  readonly fetchMs?: number | undefined
}

/** Reading it from the storage takes about as long. */
const FETCH_MS = 2000
/** Longer than a state is offered. */
const COMING_MS = 10_000

export class Handover {
  readonly #options: HandoverOptions
  readonly #offers: Offers | null
  readonly #coming = new Map<string, Coming>()

  private constructor(options: HandoverOptions, offers: Offers | null) {
    this.#options = options
    this.#offers = offers
  }

  static async open(options: HandoverOptions): Promise<Handover> {
    return new Handover(options, await Offers.open(options))
  }

  /** A session is about to be let go; this is the state that it goes on with. */
  offer(key: string, parts: readonly Uint8Array[]): void {
    const bytes = parts.reduce((sum, { length }) => sum + length, 0)
    if (bytes > this.#options.minBytes) this.#offers?.add(key, parts)
  }

  /** The session is this worker's now, and was that one's. */
  async expect({ id, record }: StoredSession, from: string): Promise<void> {
    const head = record.turns.find(({ turn }) => turn === record.head)
    if (head === undefined) return
    const { database, minBytes } = this.#options
    let url: string | null = null
    if (head.bytes > minBytes) {
      const sql = 'select url from worker where id = $1 and expires > now()'
      const { rows } = await database.query<{ url: string }>(sql, [from])
      url = rows[0]?.url ?? null
    }
    const { offerMs = 0 } = this.#options
    const now = performance.now()
    for (const [key, { since }] of this.#coming) if (now - since > COMING_MS + offerMs) this.#coming.delete(key)
    this.#coming.set(head.key, { session: id, bytes: head.bytes, from, url, since: now })
  }

  /** Whether a state is one that changes hands; said once. */
  take(key: string): Coming | null {
    const coming = this.#coming.get(key) ?? null
    this.#coming.delete(key)
    return coming
  }

  /** Its file, as it came. Null: it is to be read from the storage. */
  async fetch({ url, from, bytes }: Coming, key: string): Promise<Uint8Array | null> {
    if (url === null) return null
    const { seal, fetchMs = FETCH_MS } = this.#options
    return fetchOffer({ url, worker: from }, { key, bytes, ms: fetchMs }, seal).catch(() => null)
  }

  /** For those who look at the cluster; who moves does not wait for it. */
  note({ session, from }: Coming, isDirect: boolean, ms: number): void {
    const { database, worker, model } = this.#options
    const move = { model, id: session, fromWorker: from, toWorker: worker, isDirect, ms }
    noteMove(database, move).catch(() => {})
  }

  close(): void {
    this.#offers?.close()
  }
}

interface OfferPlace {
  /** URL of the worker's node. */
  readonly url: string
  readonly worker: string
}

interface Wanted {
  readonly key: string
  /** Size of its numbers and tokens. */
  readonly bytes: number
  /** Longest that it may take. */
  readonly ms: number
}

/** Bytes of a file beside its numbers and tokens, at most. */
const MAX_HEADER_BYTES = 8192

/** Rejects when it is not there, is larger than `bytes` and a header, or does not come soon. */
async function fetchOffer(
  { url, worker }: OfferPlace,
  { key, bytes, ms }: Wanted,
  seal: MemberSeal,
): Promise<Uint8Array> {
  const at = new URL(`${STATES_PATH}/${encodeURIComponent(worker)}/${encodeURIComponent(key)}`, url)
  const headers = { [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }) }
  const send = at.protocol === 'https:' ? askOverTls : ask
  const signal = AbortSignal.timeout(ms)
  const message = await new Promise<IncomingMessage>((resolve, reject) => {
    send(at, { headers, signal }).once('response', resolve).once('error', reject).end()
  })
  const size = Number(message.headers['content-length'])
  if (message.statusCode !== 200 || !(size <= bytes + MAX_HEADER_BYTES)) {
    message.destroy()
    throw new Error(`the node at ${url} answered ${message.statusCode} and ${size} bytes`)
  }
  const file = new Uint8Array(size)
  let length = 0
  for await (const part of message) {
    // Nobody has set an encoding; a body is never longer than it says.
    file.set(part as Buffer, length)
    length += (part as Buffer).length
  }
  if (length < size) throw new Error(`the state ended after ${length} of ${size} bytes`)
  return file
}
