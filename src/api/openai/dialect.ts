/** The OpenAI dialect: its routes and its errors. */
import { infillRoute } from '../fim/infill.ts'
import { mistralFimRoute } from '../fim/mistral.ts'
import type { RequestLimits } from '../limits.ts'
import type { Dialect } from '../route.ts'
import { chatRoute } from './chat.ts'
import { completionsRoute } from './completions.ts'
import { renderOpenAiError } from './errors.ts'
import { modelRoutes } from './models.ts'
import { tokenizeRoutes } from './tokenize.ts'

export function openAiDialect(limits: RequestLimits): Dialect {
  return {
    name: 'openai',
    routes: [
      ...modelRoutes,
      chatRoute(limits),
      completionsRoute(limits),
      ...tokenizeRoutes(limits),
      mistralFimRoute(limits),
      infillRoute(limits),
    ],
    renderError: renderOpenAiError,
  }
}
