/**
 * How much memory the bodies of one caller's requests may take at once, from before they are read until their replies have
 * ended: a body waits in memory for its last byte, and its request for a slot.
 */
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

  /** Throws queue_full where it does not fit. One alone always does. */
  take(caller: string, bytes: number): void {
    const before = this.#bytes.get(caller) ?? 0
    const most = caller === NOBODY ? this.#perCaller * NOBODYS_PART : this.#perCaller
    if (before > 0 && before + bytes > most) {
      const message = `requests under way have bodies of ${before} bytes, and this one's ${bytes} more are too many; wait for some of them`
      throw new SkeinError('queue_full', message)
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

  constructor(room: BodyRoom, caller: string, bytes: number) {
    room.take(caller, bytes)
    this.#room = room
    this.#caller = caller
    this.#bytes = bytes
  }

  /** It has been read, and may be shorter than it could have been. */
  hasLength(bytes: number): void {
    // Nothing is held any more where the client has left.
    if (bytes >= this.#bytes) return
    this.#room.free(this.#caller, this.#bytes - bytes)
    this.#bytes = bytes
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
  }
}

/** To be called behind the gate: the caller is known by then, unless the key is in the body. */
export function boundBodies(app: FastifyInstance, perCaller: number): void {
  const room = new BodyRoom(perCaller)
  app.decorateRequest('heldBody', null)
  app.addHook('onRequest', async (request, reply) => {
    const { bodyLimit, config } = request.routeOptions
    const bytes = mostBytes(request)
    // What is too large is refused for that, and unread.
    if (bytes === 0 || bytes > bodyLimit || config.isPassedOn === true) return
    const held = new HeldBody(room, request.principal?.tenant ?? NOBODY, bytes)
    request.heldBody = held
    reply.raw.once('close', () => held.free())
  })
}

/** A body whose length is not said may be as long as any. */
function mostBytes({ headers, routeOptions }: FastifyRequest): number {
  if (headers['transfer-encoding'] !== undefined) return routeOptions.bodyLimit
  return Number(headers['content-length'] ?? 0)
}
