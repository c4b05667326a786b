/** The dialect of Ollama: its routes, streams of a JSON object a line, and errors that are one string. */

import type { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { NDJSON } from '../stream-form.ts'
import { chatRoute } from './chat.ts'
import { embedRoutes } from './embed.ts'
import { fileRoutes } from './files.ts'
import { generateRoute } from './generate.ts'
import { modelRoutes } from './models.ts'

export function ollamaDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'ollama',
    about: 'Ollama',
    stream: NDJSON,
    routes: [
      chatRoute(limits, live),
      generateRoute(limits, live),
      ...embedRoutes(limits),
      ...modelRoutes,
      ...fileRoutes(),
    ],
    renderError: renderOllamaError,
  }
}

function renderOllamaError(error: SkeinError): object {
  return { error: error.message }
}
