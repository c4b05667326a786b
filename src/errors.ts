/**
 * The one error type of Skein and the table of its codes.
 * A code survives a process boundary, a prototype does not: messages carry `{code, message, details}` and each
 * wire dialect renders its own JSON from them. This file knows nothing of HTTP beyond the status numbers.
 */

/** code → HTTP status it becomes, unless a dialect says otherwise. */
export const ERROR_STATUS = {
  /** The request is malformed; the message names the field. */
  invalid_request: 400,
  /** A parameter that would change the output and that we do not implement. */
  unsupported_parameter: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  /** The request is fine, the present state of the thing it names is not. */
  conflict: 409,
  /** Another server of the cluster does that; `location` says which. */
  misdirected: 421,
  /** Larger than a limit that no retry will lift. */
  too_large: 413,
  /** The waiting line is full; retry after a while. */
  queue_full: 429,
  /** The caller's key has used up what it may; retry after a while. */
  rate_limited: 429,
  /** The caller went away or cancelled. */
  aborted: 499,
  internal: 500,
  /** A kernel returned non-finite values or an error. */
  kernel_failed: 500,
  /** No worker is ready: loading, restarting or draining. */
  model_not_loaded: 503,
  timeout: 504,
  /** The request's own `timeout`, or its key's, was over before its answer was complete. */
  deadline_exceeded: 504,
  /** The file is not a checkpoint we can run; the message says what was found. */
  unsupported_weights: 422,
  /** The file claims to be a checkpoint and is damaged or hostile. */
  corrupt_weights: 422,
  out_of_memory: 507,
  /** The device or the native library that was asked for cannot be used here. */
  backend_unavailable: 503,
  /** A snapshot does not fit this model. */
  state_incompatible: 409,
  /** The store takes what is in a record never, however much room there is. The session is as it was before. */
  state_refused: 422,
  /** A kept state cannot be read or written: disk full, damaged file. Nothing was replaced by a fresh state. */
  state_unavailable: 507,
} as const

export type ErrorCode = keyof typeof ERROR_STATUS

/** Of another process, which may be of a later release. */
export function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && code in ERROR_STATUS
}

/** The plain object that crosses process boundaries. */
export interface ErrorShape {
  readonly code: ErrorCode
  readonly message: string
  /** For invalid_request and unsupported_parameter: the field at fault. */
  readonly param?: string
  /** For misdirected: the address of the server to ask. */
  readonly location?: string
}

interface SkeinErrorOptions {
  readonly param?: string
  readonly location?: string | undefined
  readonly cause?: unknown
  readonly retryAfterSeconds?: number
}

/** An error with a code of the table above. Messages say what was wrong, what was expected, what to do. */
export class SkeinError extends Error {
  readonly code: ErrorCode
  readonly param: string | undefined
  readonly location: string | undefined
  /** When another try may succeed, where that is known. It does not cross process boundaries. */
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
    return {
      code,
      message,
      ...(param === undefined ? {} : { param }),
      ...(location === undefined ? {} : { location }),
    }
  }

  static fromShape({ code, message, ...options }: ErrorShape): SkeinError {
    return new SkeinError(code, message, options)
  }

  /** Any thrown value as a SkeinError; what is not ours is `internal`. */
  static from(error: unknown): SkeinError {
    if (error instanceof SkeinError) return error
    const message = error instanceof Error ? error.message : String(error)
    return new SkeinError('internal', message, { cause: error })
  }
}

/** For our own bugs only: a broken invariant ends the worker rather than give a wrong answer. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new SkeinError('internal', `invariant broken: ${message}`)
}
