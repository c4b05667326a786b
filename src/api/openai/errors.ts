/** The error object of the OpenAI API; openai-node and openai-python pick their error class by the HTTP status. */
import type { ErrorCode, SkeinError } from '../../errors.ts'

const TYPES: Partial<Record<ErrorCode, string>> = {
  unauthorized: 'authentication_error',
  forbidden: 'permission_error',
  queue_full: 'rate_limit_error',
  rate_limited: 'rate_limit_error',
}

export function renderOpenAiError(error: SkeinError): object {
  const type = TYPES[error.code] ?? (error.status >= 500 ? 'server_error' : 'invalid_request_error')
  return { error: { message: error.message, type, param: error.param ?? null, code: codeOf(error) } }
}

/** Our own code, except where clients look for a word of OpenAI's. */
function codeOf(error: SkeinError): string {
  if (error.code === 'unauthorized') return 'invalid_api_key'
  if (error.code === 'rate_limited') return 'rate_limit_exceeded'
  if (error.code === 'not_found' && error.param === 'model') return 'model_not_found'
  return error.code
}
