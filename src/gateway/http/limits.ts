/** All limits of the gateway in one table: those of the transport here, those of a request's content in `api/`. */
import { DEFAULT_REQUEST_LIMITS, type RequestLimits } from '../../api/limits.ts'

const DEFAULT_TRANSPORT_LIMITS = {
  bodyBytes: 8 * 2 ** 20,
  /** Bytes of a body that are read before the caller's key is found in it: the most a caller without a key can cost. */
  strangerBodyBytes: 64 * 1024,
  /** Bytes of an exported state. That of a model of 14B parameters has about 70 MB. */
  stateBytes: 128 * 2 ** 20,
  /**
   * Bytes of the bodies of one caller's requests in flight, including their parsed values. An address without a key
   * gets an eighth.
   */
  callerBytes: 64 * 2 ** 20,
  /** Bytes of all bodies together. */
  bodiesBytes: 256 * 2 ** 20,
  headerBytes: 16 * 1024,
  /** Characters of one part of a path: the longest session name with every character escaped. */
  paramLength: 3 * 256,
  jsonDepth: 64,
  /** Fields of a JSON body. No route has a tenth as many. */
  jsonFields: 1024,
  /** Objects, lists and strings in a body, including names of fields. The largest conversation has 45,000. */
  jsonNodes: 65_536,
  /** Values in a body that follow a comma, mostly token ids. */
  jsonValues: 524_288,
  /** Time from the first byte of a request to the end of its headers. */
  headersTimeoutMs: 10_000,
  /** Time from the first byte of a request to the end of its body. */
  bodyTimeoutMs: 60_000,
  /**
   * Bytes that a stream may buffer in its socket before the engine's events are no longer pulled. Small events take
   * twice as much memory, besides the event queue of the request.
   */
  streamBufferBytes: 32 * 1024,
  /** Time that a client may leave this buffer full. */
  streamStallMs: 30_000,
  /** After this time a reply that is not streamed sends white space to stay alive: fetch times out at 300 s. */
  keepAliveAfterMs: 100_000,
  /** Retry-After of 429 and 503. */
  retryAfterSeconds: 2,
} as const

export type Limits = RequestLimits & {
  readonly [K in keyof typeof DEFAULT_TRANSPORT_LIMITS]: number
}

export const DEFAULT_LIMITS: Limits = { ...DEFAULT_REQUEST_LIMITS, ...DEFAULT_TRANSPORT_LIMITS }
