/** Anthropic's errors: a type by which its clients choose a class, and a message. */
import type { SkeinError } from '../../errors.ts'

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

export function renderAnthropicError({ status, message }: SkeinError): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
  return { type: 'error', error: { type, message } }
}
