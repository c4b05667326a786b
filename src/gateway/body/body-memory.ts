/**
 * How much memory the bodies of requests may take at once, in all and for each caller, from their first byte until their
 * replies have ended: a body waits in memory for its last byte, and its request for a slot. What has come counts, never what
 * was announced.
 */
import type { Readable } from 'node:stream'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { SkeinError } from '../../errors.ts'
import { turns } from '../../threads/turns.ts'
import { PUBLIC_TENANT } from '../access/auth.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body is left unread, for another app. */
    isPassedOn?: boolean
  }
  interface FastifyRequest {
    /** Null until the headers have been looked at. */
    heldBody: HeldBody | null
  }
}

export interface BodyBounds {
  /** Limit for a body whose caller has shown no key yet, until the key is found in it. */
  readonly strangerBodyBytes: number
  /** Limit for all bodies of one caller; bodies without a key that come from one address get an eighth of it. */
  readonly callerBytes: number
  /** Limit for all bodies. */
  readonly bodiesBytes: number
}

const STRANGERS_PART = 1 / 8
/** Whatever others hold, every caller with a key may have so much. */
const OWN_BYTES = 2 ** 20

/** Several apps may share one. */
export class BodyMemory {
  readonly #bytes = new Map<string, number>()
  #total = 0

  /** Throws queue_full where it does not fit. One alone always does; it may have `own` already. */
  take({ name, hasKey }: Caller, bytes: number, own: number, bounds: BodyBounds): void {
    const { callerBytes, bodiesBytes } = bounds
    const before = this.#bytes.get(name) ?? 0
    const most = hasKey ? callerBytes : callerBytes * STRANGERS_PART
    if (before > own && before + bytes > most) throw tooMuch('this caller', before, bytes)
    const isSpare = !hasKey || before + bytes > OWN_BYTES
    if (isSpare && this.#total > own && this.#total + bytes > bodiesBytes)
      throw tooMuch('all callers', this.#total, bytes)
    this.#bytes.set(name, before + bytes)
    this.#total += bytes
  }

  free({ name }: Caller, bytes: number): void {
    this.#total -= bytes
    const left = (this.#bytes.get(name) ?? 0) - bytes
    if (left > 0) this.#bytes.set(name, left)
    else this.#bytes.delete(name)
  }
}

function tooMuch(whose: string, before: number, bytes: number): Error {
  const message = `requests of ${whose} under way have bodies of ${before} bytes, and this one's ${bytes} more are too many; wait for some of them`
  return withStatus(new SkeinError('queue_full', message))
}

/** Fastify makes 400 of what fails while a body is read and does not say otherwise. */
function withStatus(error: SkeinError): Error {
  return Object.assign(error, { statusCode: error.status })
}

/** A tenant, or the address of one that has shown no key. */
interface Caller {
  readonly name: string
  readonly hasKey: boolean
}

function callerOf(tenant: string | undefined, { ip }: FastifyRequest): Caller {
  const isKnown = tenant !== undefined && tenant !== PUBLIC_TENANT
  if (isKnown) return { name: tenant, hasKey: true }
  // A server without keys is open to everyone who reaches it; there an address counts as a key.
  return { name: `address ${networkOf(ip)}`, hasKey: tenant !== undefined }
}

/** An IPv6 host has 2^64 addresses; a mapped IPv4 address is one of IPv4. */
function networkOf(ip: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(ip)?.[1]
  if (mapped !== undefined || !ip.includes(':')) return mapped ?? ip
  return ip.split(':').slice(0, 4).join(':')
}

/** The memory of one request. */
class HeldBody {
  readonly #memory: BodyMemory
  readonly #request: FastifyRequest
  readonly #bounds: BodyBounds
  #caller: Caller
  #bytes = 0
  /** Bytes of what the body's text was parsed into. */
  #made = 0
  #isFreed = false

  constructor(memory: BodyMemory, request: FastifyRequest, bounds: BodyBounds) {
    this.#memory = memory
    this.#bounds = bounds
    this.#request = request
    this.#caller = callerOf(request.principal?.tenant, request)
  }

  /** `bytes` more of the body have arrived. */
  grow(bytes: number): void {
    if (this.#isFreed) return
    this.#memory.take(this.#caller, bytes, this.#bytes, this.#bounds)
    this.#bytes += bytes
  }

  /** The body will be parsed into `bytes`. */
  become(bytes: number): void {
    this.grow(bytes)
    if (!this.#isFreed) this.#made += bytes
  }

  /** What the body was parsed into is released; its text may still be there as prompts. */
  letGo(): void {
    this.#memory.free(this.#caller, this.#made)
    this.#bytes -= this.#made
    this.#made = 0
  }

  /** The body held its caller's key. */
  belongsTo(tenant: string): void {
    const caller = callerOf(tenant, this.#request)
    if (this.#isFreed || caller.name === this.#caller.name) return
    this.#memory.free(this.#caller, this.#bytes)
    this.#caller = caller
    const bytes = this.#bytes
    this.#bytes = 0
    this.grow(bytes)
  }

  free(): void {
    this.#memory.free(this.#caller, this.#bytes)
    this.#bytes = 0
    this.#made = 0
    this.#isFreed = true
  }
}

/** To be called behind the gate: the caller is known by then, unless the key is in the body. */
export function holdBodies(app: FastifyInstance, memory: BodyMemory, bounds: BodyBounds): void {
  app.decorateRequest('heldBody', null)
  app.addHook('onRequest', async (request, reply) => {
    const { headers, routeOptions } = request
    const hasBody = headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
    if (!hasBody || routeOptions.config.isPassedOn === true) return
    const held = new HeldBody(memory, request, bounds)
    request.heldBody = held
    reply.raw.once('close', () => held.free())
  })
}

/**
 * A body in one piece. `look` sees every part as it comes. Past a bound for strangers, one without a key in a header must
 * have shown it: `keyOf` gives the tenant of the key in what has come, or throws.
 */
export async function readBody(
  request: FastifyRequest,
  payload: Readable,
  { strangerBodyBytes }: BodyBounds,
  look: (bytes: Uint8Array) => void = () => {},
  keyOf: () => string = keyless,
): Promise<Uint8Array<ArrayBuffer>> {
  const { bodyLimit } = request.routeOptions
  const { heldBody, principal } = request
  const parts: Uint8Array[] = []
  let size = 0
  let isStranger = principal === null
  checkSize(Number(request.headers['content-length'] ?? 0), bodyLimit)
  for await (const bytes of partsOf(payload)) {
    size += bytes.length
    checkSize(size, bodyLimit)
    heldBody?.grow(bytes.length)
    await turns.do(() => look(bytes))
    if (isStranger && size > strangerBodyBytes) {
      heldBody?.belongsTo(keyOf())
      isStranger = false
    }
    parts.push(bytes)
  }
  // A copy of their own memory: it may be handed to a thread.
  const body = new Uint8Array(size)
  let at = 0
  for (const part of parts) {
    // The first touch of new memory costs more than the copy.
    await turns.do(() => body.set(part, at))
    at += part.length
  }
  return body
}

function keyless(): never {
  throw withStatus(new SkeinError('unauthorized', 'the body needs an API key in the header'))
}

/** The connection stays for a refusal. */
async function* partsOf(payload: Readable): AsyncGenerator<Uint8Array> {
  const parts = payload.iterator({ destroyOnReturn: false })
  try {
    // Nobody has set an encoding, so parts are bytes.
    for await (const part of parts) yield part as Uint8Array
  } catch (cause) {
    throw new SkeinError('aborted', 'the client went away before the end of its body', { cause })
  }
}

function checkSize(bytes: number, limit: number): void {
  if (bytes <= limit) return
  const message = `the body is larger than the ${limit / 2 ** 20} MiB that this route takes`
  throw withStatus(new SkeinError('too_large', message))
}
