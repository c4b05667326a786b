/** Every bound of the gateway, in one table: those of the transport here, those of a request's content in `api/`. */
import { DEFAULT_REQUEST_LIMITS, type RequestLimits } from '../api/limits.ts'

const DEFAULT_TRANSPORT_LIMITS = {
  bodyBytes: 8 * 2 ** 20,
  /** An exported state: that of a model of 14B parameters has some 70 MB. */
  stateBytes: 512 * 2 ** 20,
  /** Of the bodies of all requests of one caller that are under way; an eighth of it for all who have shown no key yet. */
  callerBytes: 512 * 2 ** 20,
  headerBytes: 16 * 1024,
  /** Of a part of a path: the longest name of a session, every character of it escaped. */
  paramLength: 3 * 256,
  jsonDepth: 64,
  /** From the first byte of a request to the end of its headers. */
  headersTimeoutMs: 10_000,
  /** From the first byte of a request to the end of its body. */
  bodyTimeoutMs: 60_000,
  /**
   * What a stream may have buffered in its socket before the engine's events are no longer pulled. Small events take twice
   * that in memory; beside it there is what waits in the event queue of its request.
   */
  streamBufferBytes: 32 * 1024,
  /** How long a client may leave that buffer full. */
  streamStallMs: 30_000,
  /** A reply that is not streamed is kept alive with white space from here on: fetch gives up at 300 s. */
  keepAliveAfterMs: 100_000,
  /** What clients are told to wait after a 429 or 503. */
  retryAfterSeconds: 2,
} as const

export type Limits = RequestLimits & {
  readonly [K in keyof typeof DEFAULT_TRANSPORT_LIMITS]: number
}

export const DEFAULT_LIMITS: Limits = { ...DEFAULT_REQUEST_LIMITS, ...DEFAULT_TRANSPORT_LIMITS }
