/** The OpenAI dialect: its routes and its errors. */
import { embeddingRoutes } from '../embeddings/embeddings.ts'
import { rerankRoutes } from '../embeddings/rerank.ts'
import { infillRoute } from '../fim/infill.ts'
import { mistralFimRoute } from '../fim/mistral.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { absentRoutes } from './absent.ts'
import { chatRoute } from './chat.ts'
import { completionsRoute } from './completions.ts'
import { renderOpenAiError } from './errors.ts'
import { modelRoutes } from './models.ts'
import { cancelRoute } from './requests.ts'
import { tokenizeRoutes } from './tokenize.ts'

export function openAiDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'openai',
    about: 'OpenAI: chat, completions, tokens',
    // Anthropic's and Azure's: their clients list models, too.
    keyHeaders: ['x-api-key', 'api-key'],
    routes: [
      ...modelRoutes,
      chatRoute(limits, live),
      completionsRoute(limits, live),
      ...embeddingRoutes(limits),
      ...rerankRoutes(limits),
      ...tokenizeRoutes(limits),
      mistralFimRoute(limits),
      infillRoute(limits),
      cancelRoute(live),
      ...absentRoutes(),
    ],
    renderError: renderOpenAiError,
  }
}
