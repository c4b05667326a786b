/**
 * How much memory the bodies of one caller's requests may take at once, from before they are read until their replies have
 * ended: a body waits in memory for its last byte, and its request for a slot.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { SkeinError } from '../errors.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body is left unread, for another app. */
    isPassedOn?: boolean
  }
  interface FastifyRequest {
    /** Null without a body. */
    heldBody: HeldBody | null
  }
}

/** Whoever has shown no key yet: one caller, with a small part of what one with a key has. */
const NOBODY = ''
const NOBODYS_PART = 1 / 8

class BodyRoom {
  readonly #perCaller: number
  readonly #bytes = new Map<string, number>()

  constructor(perCaller: number) {
    this.#perCaller = perCaller
  }

  /** Throws queue_full where it does not fit. One alone always does; it may have `own` already. */
  take(caller: string, bytes: number, own = 0): void {
    const before = this.#bytes.get(caller) ?? 0
    const most = caller === NOBODY ? this.#perCaller * NOBODYS_PART : this.#perCaller
    if (before > own && before + bytes > most) {
      const message = `requests under way have bodies of ${before} bytes, and this one's ${bytes} more are too many; wait for some of them`
      const error = new SkeinError('queue_full', message)
      // Fastify makes 400 of what fails while a body is read and does not say this.
      throw Object.assign(error, { statusCode: error.status })
    }
    this.#bytes.set(caller, before + bytes)
  }

  free(caller: string, bytes: number): void {
    const left = (this.#bytes.get(caller) ?? 0) - bytes
    if (left > 0) this.#bytes.set(caller, left)
    else this.#bytes.delete(caller)
  }
}

/** What one request takes of the room. */
class HeldBody {
  readonly #room: BodyRoom
  #caller: string
  #bytes: number
  #isFreed = false

  constructor(room: BodyRoom, caller: string, bytes: number) {
    room.take(caller, bytes)
    this.#room = room
    this.#caller = caller
    this.#bytes = bytes
  }

  /** So much more of it has come, where nothing had said how long it is. */
  grow(bytes: number): void {
    if (this.#isFreed) return
    this.#room.take(this.#caller, bytes, this.#bytes)
    this.#bytes += bytes
  }

  /** It held its caller's key. */
  belongsTo(caller: string): void {
    this.#room.take(caller, this.#bytes)
    this.#room.free(this.#caller, this.#bytes)
    this.#caller = caller
  }

  free(): void {
    this.#room.free(this.#caller, this.#bytes)
    this.#bytes = 0
    this.#isFreed = true
  }
}

/** To be called behind the gate: the caller is known by then, unless the key is in the body. */
export function boundBodies(app: FastifyInstance, perCaller: number): void {
  const room = new BodyRoom(perCaller)
  app.decorateRequest('heldBody', null)
  app.addHook('onRequest', async (request, reply) => {
    const { bodyLimit, config } = request.routeOptions
    const bytes = Number(request.headers['content-length'] ?? 0)
    // What is too large is refused for that, and unread.
    const hasBody = bytes > 0 || isChunked(request)
    if (!hasBody || bytes > bodyLimit || config.isPassedOn === true) return
    const held = new HeldBody(room, request.principal?.tenant ?? NOBODY, bytes)
    request.heldBody = held
    reply.raw.once('close', () => held.free())
  })
  app.addHook('preParsing', async (request, _reply, payload) => {
    const { heldBody } = request
    return heldBody === null || !isChunked(request) ? payload : counted(payload, heldBody)
  })
}

/** Nothing says how long such a body is: it takes what has come of it. */
function isChunked({ headers }: FastifyRequest): boolean {
  return headers['transfer-encoding'] !== undefined
}

function counted(payload: Readable, held: HeldBody): Readable {
  async function* chunks() {
    // The connection stays for the refusal.
    for await (const chunk of payload.iterator({ destroyOnReturn: false })) {
      held.grow(chunk.length)
      yield chunk
    }
  }
  return Readable.from(chunks(), { objectMode: false })
}
