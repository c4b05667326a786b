/** The dialect of Anthropic: Messages, streams of named events, and its own header for the key. */
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { NAMED_SSE } from '../stream-form.ts'
import { renderAnthropicError } from './errors.ts'
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
