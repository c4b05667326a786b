/**
 * States that a worker has let go of, for the worker that gets them: under their keys, for a moment, through a socket that
 * only its node's server knows of. A key is never used twice and a file proves that it is whole, so what comes late, in part
 * or from the wrong one is no state at all; and all of them are in the storage, too.
 */
import { rmSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import { CALLER_HEADER, type MemberSeal } from '../../cluster/member-seal.ts'
import { dropStaleSockets, stateSocketOf } from '../../cluster/state-socket.ts'
import { warn } from '../store/failures.ts'

interface Offer {
  readonly parts: readonly Uint8Array[]
  readonly bytes: number
  readonly end: NodeJS.Timeout
}

interface OffersOptions {
  /** Whose they are. */
  readonly worker: string
  readonly seal: MemberSeal
  readonly offerMs?: number | undefined
}

/** How long a state waits for whoever gets its session. */
const OFFER_MS = 5000
/** Bytes of all states offered at a time: seven of the largest. States that do not fit are read from the storage. */
const MAX_BYTES = 2 ** 29

export class Offers {
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
