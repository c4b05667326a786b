/** The dialect of Anthropic: Messages, streams of named events, and its own header for the key. */

import type { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { NAMED_SSE } from '../stream-form.ts'
import { countRoute, messagesRoute } from './messages.ts'

/** `ping` is the event that its clients skip. */
const STREAM = { ...NAMED_SSE, beat: NAMED_SSE.frame({ type: 'ping' }) }

export function anthropicDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'anthropic',
    about: 'Anthropic Messages',
    stream: STREAM,
    keyHeaders: ['x-api-key'],
    routes: [messagesRoute(limits, live), countRoute(limits)],
    renderError: renderAnthropicError,
  }
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

function renderAnthropicError({ status, message }: SkeinError): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
  return { type: 'error', error: { type, message } }
}
