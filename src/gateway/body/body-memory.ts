/**
 * Limits the memory of request bodies, in total and per caller, from the first byte until the reply has ended: a body
 * waits in memory for its last byte, and its request for a slot. Bytes count as they arrive; Content-Length does not.
 */
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { SkeinError } from '../../errors.ts'
import { turns } from '../../threads/turns.ts'
import { PUBLIC_TENANT } from '../access/auth.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body stays unread, for another app. */
    isPassedOn?: boolean
  }
  interface FastifyRequest {
    /** Null until the headers have been checked. */
    heldBody: HeldBody | null
  }
}

export interface BodyBounds {
  /** Limit of a body without a key in a header, until its key is found in the body. */
  readonly strangerBodyBytes: number
  /** Limit of all bodies of one caller. An address without a key gets an eighth of it. */
  readonly callerBytes: number
  /** Limit of all bodies together. */
  readonly bodiesBytes: number
}

const STRANGERS_PART = 1 / 8
/** Reading so much, or refusing it on the way, takes milliseconds of the event loop. */
const LARGE_BYTES = 64 * 1024
/** Who has been refused so many large bodies in a row has the next ones read at this distance. None waits longer than the most. */
const IN_A_ROW = 32
const REST_MS = 1000
const MOST_REST_MS = 5000
/** Without another refusal they are forgotten. */
const FORGET_MS = 10_000
/** Every caller with a key may hold this much, whatever others hold. */
const OWN_BYTES = 2 ** 20

/** Several apps may share one. */
export class BodyMemory {
  readonly #bytes = new Map<string, number>()
  /** Large bodies that were refused, by caller, since the last one that was taken; and until when the next waits. */
  readonly #refusals = new Map<string, { readonly count: number; readonly until: number }>()
  #total = 0

  /** Throws as `check` does. */
  take(caller: Caller, bytes: number, own: number, bounds: BodyBounds): void {
    this.check(caller, bytes, own, bounds)
    this.#bytes.set(caller.name, (this.#bytes.get(caller.name) ?? 0) + bytes)
    this.#total += bytes
  }

  /**
   * Throws queue_full if it does not fit. The only body of a caller, or of the server, always fits. `own`: bytes that
   * this body already holds.
   */
  check({ name, hasKey }: Caller, bytes: number, own: number, { callerBytes, bodiesBytes }: BodyBounds): void {
    const before = this.#bytes.get(name) ?? 0
    const most = hasKey ? callerBytes : callerBytes * STRANGERS_PART
    if (before > own && before + bytes > most) throw tooMuch('this caller', before, bytes)
    const isSpare = !hasKey || before + bytes > OWN_BYTES
    if (isSpare && this.#total > own && this.#total + bytes > bodiesBytes)
      throw tooMuch('all callers', this.#total, bytes)
  }

  refused({ name }: Caller): void {
    const { count, until } = this.#refusals.get(name) ?? { count: 0, until: 0 }
    this.#remember(name, count + 1, Math.max(until, performance.now() + REST_MS))
  }

  taken({ name }: Caller): void {
    this.#refusals.delete(name)
  }

  /** How long a large body waits; one that comes after it waits longer. */
  restOf({ name }: Caller): number {
    const { count, until } = this.#refusals.get(name) ?? { count: 0, until: 0 }
    if (count < IN_A_ROW) return 0
    this.#remember(name, count, until + REST_MS)
    return Math.max(0, until - performance.now())
  }

  #remember(name: string, count: number, at: number): void {
    const own = { count, until: Math.min(at, performance.now() + MOST_REST_MS) }
    this.#refusals.set(name, own)
    setTimeout(() => this.#refusals.get(name) === own && this.#refusals.delete(name), FORGET_MS).unref()
  }

  free({ name }: Caller, bytes: number): void {
    this.#total -= bytes
    const left = (this.#bytes.get(name) ?? 0) - bytes
    if (left > 0) this.#bytes.set(name, left)
    else this.#bytes.delete(name)
  }
}

function tooMuch(whose: string, before: number, bytes: number): Error {
  const message = `request bodies of ${whose} in flight hold ${before} bytes, and another ${bytes} do not fit; wait until some requests end`
  return withStatus(new SkeinError('queue_full', message))
}

/** Fastify turns errors while a body is read into 400 unless they have a status. */
export function withStatus(error: SkeinError, statusCode: number = error.status): Error {
  return Object.assign(error, { statusCode })
}

/** A tenant, or the address of a caller without a key. */
interface Caller {
  readonly name: string
  readonly hasKey: boolean
}

function callerOf(tenant: string | undefined, { ip }: FastifyRequest): Caller {
  const isKnown = tenant !== undefined && tenant !== PUBLIC_TENANT
  if (isKnown) return { name: tenant, hasKey: true }
  // A server without keys is open to everyone, so an address counts as a key.
  return { name: `address ${networkOf(ip)}`, hasKey: tenant !== undefined }
}

/** An IPv6 host has 2^64 addresses, so its network counts. A mapped IPv4 address counts as IPv4. */
function networkOf(ip: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(ip)?.[1]
  if (mapped !== undefined || !ip.includes(':')) return mapped ?? ip
  return ip.split(':').slice(0, 4).join(':')
}

class HeldBody {
  readonly #memory: BodyMemory
  readonly #request: FastifyRequest
  readonly #bounds: BodyBounds
  #caller: Caller
  #bytes = 0
  /** Bytes of the parsed body. */
  #made = 0
  #isFreed = false

  constructor(memory: BodyMemory, request: FastifyRequest, bounds: BodyBounds) {
    this.#memory = memory
    this.#bounds = bounds
    this.#request = request
    this.#caller = callerOf(request.principal?.tenant, request)
  }

  /** Throws if `bytes` would not fit now. */
  check(bytes: number): void {
    this.#memory.check(this.#caller, bytes, this.#bytes, this.#bounds)
  }

  /** Another `bytes` of the body have arrived. */
  grow(bytes: number): void {
    if (this.#isFreed) return
    this.#memory.take(this.#caller, bytes, this.#bytes, this.#bounds)
    this.#bytes += bytes
  }

  /** Waits if the caller's last large bodies were refused. Meanwhile it counts as announced, so that few wait. */
  async rest(announced: number): Promise<void> {
    const ms = this.#memory.restOf(this.#caller)
    if (ms === 0) return
    const more = Math.max(0, announced - this.#bytes)
    this.grow(more)
    await delay(ms, null, { ref: false })
    if (this.#isFreed) return
    this.#memory.free(this.#caller, more)
    this.#bytes -= more
  }

  /** A large body was read to its end, or refused. */
  ended(isTaken: boolean): void {
    if (isTaken) this.#memory.taken(this.#caller)
    else this.#memory.refused(this.#caller)
  }

  /** The body will be parsed into `bytes`. */
  become(bytes: number): void {
    this.grow(bytes)
    if (!this.#isFreed) this.#made += bytes
  }

  /** The parsed body is released; its text may still be there as prompts. */
  release(): void {
    this.#memory.free(this.#caller, this.#made)
    this.#bytes -= this.#made
    this.#made = 0
  }

  /** The caller's key was found in the body. */
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

/** Call this after the gate: by then the caller is known, unless the key is in the body. */
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
 * Reads a body into one piece. `look` sees every part as it comes. A body without a key in a header must have shown its
 * key within the limit for strangers: `keyOf` returns the key's tenant from what has come, or throws.
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
  let hasRested = false
  let isStranger = principal === null
  const announced = Number(request.headers['content-length'] ?? 0)
  checkSize(announced, bodyLimit)
  // What would be refused before its end is not read. A stranger's may be found to be somebody's.
  if (!isStranger) heldBody?.check(announced)
  const isLarge = () => Math.max(announced, size) > LARGE_BYTES
  try {
    for await (const bytes of partsOf(payload)) {
      parts.push(bytes)
      size += bytes.length
      checkSize(size, bodyLimit)
      heldBody?.grow(bytes.length)
      if (!hasRested && !isStranger && isLarge()) {
        hasRested = true
        await heldBody?.rest(announced)
        if (payload.destroyed) throw gone()
      }
      await turns.do(() => look(bytes))
      if (isStranger && size > strangerBodyBytes) {
        heldBody?.belongsTo(keyOf())
        isStranger = false
      }
    }
    // A copy with memory of its own, because it may be transferred to a thread.
    const body = new Uint8Array(size)
    let at = 0
    for (const part of parts) {
      // The first touch of new memory costs more than the copy.
      await turns.do(() => body.set(part, at))
      at += part.length
    }
    if (isLarge()) heldBody?.ended(true)
    return body
  } catch (error) {
    const { code } = SkeinError.from(error)
    if (isLarge() && !isStranger && code !== 'queue_full' && code !== 'aborted') heldBody?.ended(false)
    throw error
  } finally {
    for (const part of parts) letGo(part)
  }
}

/**
 * Frees its memory at once. Until a collection it would count as objects that are kept, so V8 would mark all objects once a
 * second beside a few bodies that are refused. Node 20 cannot.
 */
function letGo({ buffer, byteLength }: Uint8Array): void {
  const isOwn = buffer instanceof ArrayBuffer && buffer.byteLength === byteLength
  if (isOwn) (buffer as { transfer?: (bytes: number) => unknown }).transfer?.(0)
}

function keyless(): never {
  throw withStatus(new SkeinError('unauthorized', 'the body needs an API key in the header'))
}

/** Keeps the connection open after a break, so that a refusal can be sent. */
async function* partsOf(payload: Readable): AsyncGenerator<Uint8Array> {
  const parts = payload.iterator({ destroyOnReturn: false })
  try {
    // No encoding is set, so the parts are bytes.
    for await (const part of parts) yield part as Uint8Array
  } catch (cause) {
    throw gone(cause)
  }
}

function gone(cause?: unknown): SkeinError {
  return new SkeinError('aborted', 'the client went away before the end of its body', { cause })
}

function checkSize(bytes: number, limit: number): void {
  if (bytes <= limit) return
  const message = `the body is larger than the ${limit / 2 ** 20} MiB that this route takes`
  throw withStatus(new SkeinError('too_large', message))
}
