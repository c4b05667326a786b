/**
 * States of sessions that change hands: offered by the worker that lets go, fetched by the one that gets the session, from
 * memory to memory. It is a shortcut and decides nothing: whose a session is the database says, what its state is the key
 * says, and whatever does not come by this way is read from the storage.
 */

import { rmSync } from 'node:fs'
import { request as ask, createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { request as askOverTls } from 'node:https'
import type { Connection } from '../../cluster/database.ts'
import { CALLER_HEADER, type MemberSeal } from '../../cluster/member-seal.ts'
import { noteMove } from '../../cluster/moves.ts'
import { dropStaleSockets, STATES_PATH, stateSocketOf } from '../../cluster/state-socket.ts'
import { warn } from '../store/failures.ts'
import type { StoredSession } from '../store/store.ts'

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
async function fetchOffer({ url, worker }: OfferPlace, { key, bytes, ms }: Wanted, seal: MemberSeal) {
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

interface Offer {
  readonly parts: readonly Uint8Array[]
  readonly bytes: number
  readonly end: NodeJS.Timeout
}

/** `worker`: whose they are. */
type OffersOptions = Pick<HandoverOptions, 'worker' | 'seal' | 'offerMs'>

/** How long a state waits for whoever gets its session. */
const OFFER_MS = 5000
/** Bytes of all states offered at a time: seven of the largest. States that do not fit are read from the storage. */
const MAX_BYTES = 2 ** 29

/**
 * States that a worker has let go of, for the worker that gets them: under their keys, for a moment, through a socket that
 * only its node's server knows of. A key is never used twice and a file proves that it is whole, so what comes late, in part
 * or from the wrong one is no state at all; and all of them are in the storage, too.
 */
class Offers {
  readonly #server: Server
  readonly #socket: string
  readonly #offerMs: number
  readonly #offers = new Map<string, Offer>()
  #bytes = 0

  private constructor({ worker, seal, offerMs = OFFER_MS }: OffersOptions) {
    this.#offerMs = offerMs
    this.#socket = stateSocketOf(worker)
    this.#server = createServer(({ url = '/', headers }, reply) => {
      try {
        // For members themselves, not for callers that they speak for.
        const isMember = seal.open(String(headers[CALLER_HEADER])).principal === null
        if (isMember) this.#answer(url.slice(1), reply)
        else reply.writeHead(403).end()
      } catch {
        reply.writeHead(401).end()
      }
    })
  }

  /** Null, and a warning, where the machine has no place for a socket: then all goes through the storage. */
  static async open(options: OffersOptions): Promise<Offers | null> {
    const offers = new Offers(options)
    // Only the tidiness of a folder hangs on it.
    dropStaleSockets().catch(() => {})
    try {
      await new Promise<void>((resolve, reject) => {
        offers.#server.once('error', reject).listen(offers.#socket, resolve)
      })
    } catch (error) {
      warn('sessions move by way of the storage only', error)
      return null
    }
    offers.#server.unref()
    return offers
  }

  add(key: string, parts: readonly Uint8Array[]): void {
    const bytes = parts.reduce((sum, { length }) => sum + length, 0)
    if (this.#offers.has(key) || this.#bytes + bytes > MAX_BYTES) return
    const end = setTimeout(() => this.#take(key), this.#offerMs).unref()
    this.#offers.set(key, { parts, bytes, end })
    this.#bytes += bytes
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
    for (const key of [...this.#offers.keys()]) this.#take(key)
    rmSync(this.#socket, { force: true })
  }

  /** Once: who has got half of it reads it from the storage. */
  #answer(key: string, reply: ServerResponse): void {
    const offer = this.#take(key)
    if (offer === null) {
      reply.writeHead(404).end()
      return
    }
    reply.writeHead(200, { 'content-length': offer.bytes })
    for (const part of offer.parts) reply.write(part)
    reply.end()
  }

  #take(key: string): Offer | null {
    const offer = this.#offers.get(key)
    if (offer === undefined) return null
    this.#offers.delete(key)
    this.#bytes -= offer.bytes
    clearTimeout(offer.end)
    return offer
  }
}
