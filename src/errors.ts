/**
 * Skein's error class and the table of its codes. Prototypes do not survive a process boundary, so messages carry
 * `{code, message, details}`, and each dialect renders its own JSON from them. HTTP appears here only as status
 * numbers.
 */

/** HTTP status of each code, unless a dialect has another. */
export const ERROR_STATUS = {
  /** The request is malformed; the message names the field. */
  invalid_request: 400,
  /** The parameter would change the output and is not implemented. */
  unsupported_parameter: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  /** The request is valid, but conflicts with the current state of what it names. */
  conflict: 409,
  /** Another server of the cluster handles this; `location` names it. */
  misdirected: 421,
  /** Larger than a limit, so a retry cannot help. */
  too_large: 413,
  /** The queue is full; retry later. */
  queue_full: 429,
  /** The key's allowance is used up; retry later. */
  rate_limited: 429,
  /** The caller disconnected or cancelled. */
  aborted: 499,
  internal: 500,
  /** A kernel returned non-finite values or an error. */
  kernel_failed: 500,
  /** No worker is ready: loading, restarting or draining. */
  model_not_loaded: 503,
  timeout: 504,
  /** The timeout of the request or its key passed before the answer was complete. */
  deadline_exceeded: 504,
  /** The file is not a checkpoint that Skein can run; the message describes it. */
  unsupported_weights: 422,
  /** The file looks like a checkpoint but is damaged or hostile. */
  corrupt_weights: 422,
  out_of_memory: 507,
  /** The requested device or native library cannot be used here. */
  backend_unavailable: 503,
  /** A snapshot does not fit this model. */
  state_incompatible: 409,
  /** The store can never accept a value of this record. The session is unchanged. */
  state_refused: 422,
  /** A kept state cannot be read or written: disk full, damaged file. It was not replaced by a fresh state. */
  state_unavailable: 507,
} as const

export type ErrorCode = keyof typeof ERROR_STATUS

/** A code of another process may come from a later release. */
export function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && code in ERROR_STATUS
}

/** The plain object that crosses process boundaries. */
export interface ErrorShape {
  readonly code: ErrorCode
  readonly message: string
  /** For invalid_request and unsupported_parameter: the wrong field. */
  readonly param?: string
  /** For misdirected: the URL of the right server. */
  readonly location?: string
}

interface SkeinErrorOptions {
  readonly param?: string
  readonly location?: string | undefined
  readonly cause?: unknown
  readonly retryAfterSeconds?: number
}

/** An error with a code of the table. Messages say what was wrong, what was expected, and what to do. */
export class SkeinError extends Error {
  readonly code: ErrorCode
  readonly param: string | undefined
  readonly location: string | undefined
  /** When a retry may succeed, if known. Does not cross process boundaries. */
  readonly retryAfterSeconds: number | undefined

  constructor(code: ErrorCode, message: string, options: SkeinErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'SkeinError'
    this.code = code
    this.param = options.param
    this.location = options.location
    this.retryAfterSeconds = options.retryAfterSeconds
  }

  get status(): number {
    return ERROR_STATUS[this.code]
  }

  toShape(): ErrorShape {
    const { code, message, param, location } = this
    return { code, message, ...(param === undefined ? {} : { param }), ...(location === undefined ? {} : { location }) }
  }

  static fromShape({ code, message, ...options }: ErrorShape): SkeinError {
    return new SkeinError(code, message, options)
  }

  /** Converts any thrown value; foreign errors become `internal`. */
  static from(error: unknown): SkeinError {
    if (error instanceof SkeinError) return error
    return new SkeinError('internal', error instanceof Error ? error.message : String(error), { cause: error })
  }
}

/** Only for bugs: a broken invariant ends the worker rather than give a wrong answer. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new SkeinError('internal', `invariant broken: ${message}`)
}

/** A field, or an option, that is not what it has to be. */
export function invalid(param: string, message: string): SkeinError {
  return new SkeinError('invalid_request', `${param}: ${message}`, { param })
}

/** A field that would change the reply, in a request that cannot follow it. */
export function notImplemented(param: string, message: string): SkeinError {
  return new SkeinError('unsupported_parameter', `${param}: ${message}`, { param })
}
