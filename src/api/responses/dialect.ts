/** The Responses API of OpenAI: items in and out, streams of named events, and answers that the next request goes on from. */
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { renderOpenAiError } from '../openai/errors.ts'
import type { Dialect } from '../route.ts'
import { NAMED_SSE } from '../stream-form.ts'
import { createRoutes } from './create.ts'
import { storedRoutes } from './stored.ts'

export function responsesDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'responses',
    about: 'OpenAI Responses',
    stream: NAMED_SSE,
    keyHeaders: ['api-key'],
    routes: [...createRoutes(limits, live), ...storedRoutes()],
    renderError: renderOpenAiError,
  }
}
