/** Every bound of the gateway, in one table: those of the transport here, those of a request's content in `api/`. */
import { DEFAULT_REQUEST_LIMITS, type RequestLimits } from '../../api/limits.ts'

const DEFAULT_TRANSPORT_LIMITS = {
  bodyBytes: 8 * 2 ** 20,
  /** Of a body whose caller has shown no key, until the key is found in it: such callers cost what they are allowed here. */
  strangerBodyBytes: 64 * 1024,
  /** An exported state: that of a model of 14B parameters has some 70 MB. */
  stateBytes: 128 * 2 ** 20,
  /**
   * Of the bodies of all requests of one caller that are under way, with what they have become; of those that come from one
   * address without a key, an eighth of it.
   */
  callerBytes: 64 * 2 ** 20,
  /** Of all of them. */
  bodiesBytes: 256 * 2 ** 20,
  headerBytes: 16 * 1024,
  /** Of a part of a path: the longest name of a session, every character of it escaped. */
  paramLength: 3 * 256,
  jsonDepth: 64,
  /** Of a body. No route has a tenth of it. */
  jsonFields: 1024,
  /** Objects, lists and strings in a body, names of fields among them. The largest conversation has 45,000. */
  jsonNodes: 65_536,
  /** Values in a body that stand behind a comma: token ids above all. */
  jsonValues: 524_288,
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
