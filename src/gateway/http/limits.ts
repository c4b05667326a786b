/** Every bound of the gateway, in one table: those of the transport here, those of a request's content in `api/`. */
import { DEFAULT_REQUEST_LIMITS, type RequestLimits } from '../../api/limits.ts'

const DEFAULT_TRANSPORT_LIMITS = {
  bodyBytes: 8 * 2 ** 20,
  /** Bytes of a body that are read before its caller's key is found in it. Callers without a key can cost that much. */
  strangerBodyBytes: 64 * 1024,
  /** An exported state: that of a model of 14B parameters has some 70 MB. */
  stateBytes: 128 * 2 ** 20,
  /**
   * Of the bodies of all requests of one caller that are under way, with what they have become; of those that come from one
   * address without a key, an eighth of it.
   */
  callerBytes: 64 * 2 ** 20,
  /** Bytes of all bodies together. */
  bodiesBytes: 256 * 2 ** 20,
  headerBytes: 16 * 1024,
  /** Characters of a path's part: the longest session name with every character escaped. */
  paramLength: 3 * 256,
  jsonDepth: 64,
  /** Fields of a JSON body. No route has a tenth as many. */
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
