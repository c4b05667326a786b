/**
 * Decides what a client sees of an error. Messages of Skein's own codes are written for clients. Of unforeseen errors,
 * whose messages may hold a stack or a path, the client gets only the code and the request id; the log has the rest.
 */
import type { FastifyError } from 'fastify'
import { ERROR_STATUS, type ErrorCode, SkeinError } from '../../errors.ts'

/** Codes whose messages go only to the log. */
const UNFORESEEN: Partial<Record<ErrorCode, string>> = {
  internal: 'the server failed on this request',
  kernel_failed: 'the model failed on this request',
}

/** Codes whose messages may hold details for the operator only. */
const GENERIC: Partial<Record<ErrorCode, string>> = {
  ...UNFORESEEN,
  out_of_memory: 'the server ran out of memory on this request',
  backend_unavailable: 'the device of this model is not available',
  unsupported_weights: 'the model could not be loaded',
  corrupt_weights: 'the model could not be loaded',
}

export function publicError(error: SkeinError, requestId: string, isOperators: boolean): SkeinError {
  const generic = (isOperators ? UNFORESEEN : GENERIC)[error.code]
  if (generic === undefined) return error
  return new SkeinError(error.code, `${generic}; its log has the cause under request ${requestId}`)
}

interface Failure {
  readonly error: SkeinError
  readonly status: number
}

/** Converts a thrown value to an error and its HTTP status. Fastify's own errors keep their 4xx status. */
export function failureOf(thrown: unknown, bodyLimit: number): Failure {
  const status = statusCodeOf(thrown)
  if (thrown instanceof SkeinError) {
    // Fastify sets 400 on anything that a validator returns, so only a status that we chose counts.
    return { error: thrown, status: status ?? thrown.status }
  }
  if (status === undefined || status < 400 || status > 499) {
    const error = SkeinError.from(thrown)
    return { error, status: error.status }
  }
  return { error: fromFastify(thrown as FastifyError, status, bodyLimit), status }
}

function statusCodeOf(thrown: unknown): number | undefined {
  const status = (thrown as { statusCode?: unknown } | null)?.statusCode
  return typeof status === 'number' ? status : undefined
}

const FASTIFY_MESSAGES: Readonly<Record<string, string>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'expected the header Content-Type: application/json',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'the body is not as long as Content-Length says',
  FST_ERR_BAD_URL: 'the path of the request is not a valid URL',
  FST_ERR_MAX_PARAM_LENGTH: 'the path of the request is too long',
}

function fromFastify(error: FastifyError, status: number, bodyLimit: number): SkeinError {
  const message =
    error.code === 'FST_ERR_CTP_BODY_TOO_LARGE'
      ? `the body is larger than the ${bodyLimit / 2 ** 20} MiB that this route takes`
      : (FASTIFY_MESSAGES[error.code] ?? 'the request is malformed')
  return new SkeinError(codeOfStatus(status), message, { cause: error })
}

function codeOfStatus(status: number): ErrorCode {
  const known: readonly ErrorCode[] = ['too_large', 'not_found', 'unauthorized', 'forbidden']
  return known.find((code) => ERROR_STATUS[code] === status) ?? 'invalid_request'
}

/** Whether a retry may succeed, so that Retry-After makes sense. */
export function isWorthRetrying(error: SkeinError): boolean {
  return ['queue_full', 'rate_limited', 'model_not_loaded'].includes(error.code)
}
