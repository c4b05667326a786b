/** The OpenAI dialect: its routes, among them those that refuse by name what this server has not, and its errors. */

import { SkeinError } from '../../errors.ts'
import { embeddingRoutes } from '../embeddings/embeddings.ts'
import { rerankRoutes } from '../embeddings/rerank.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { infillRoute } from '../llama/dialect.ts'
import { type Dialect, del, json, type Route } from '../route.ts'
import { chatRoute } from './chat.ts'
import { completionsRoute } from './completions.ts'
import { renderOpenAiError } from './errors.ts'
import { mistralFimRoute } from './fim.ts'
import { modelRoutes } from './models.ts'
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

/** Routes of OpenAI that this server refuses, and what it has none of. */
const ABSENT: Readonly<Record<string, string>> = {
  '/v1/audio/speech': 'speech; its models read and write text',
  '/v1/audio/transcriptions': 'transcriptions; its models read and write text',
  '/v1/images/generations': 'images; its models read and write text',
  '/v1/moderations': 'moderations',
}

function absentRoutes(): Route[] {
  return Object.entries(ABSENT).map(([path, what]) => ({
    method: 'POST',
    path,
    summary: 'Refused: OpenAI has it, this server does not',
    body: null,
    handle: () => Promise.reject(new SkeinError('not_found', `this server has no ${what}`)),
  }))
}

/** Ends a call of the caller's own, by the id of its reply or the `request_id` it was given. */
function cancelRoute(live: LiveCalls): Route {
  const path = '/v1/requests/:id'
  const route = del(path, 'End a request; it fails with 409', ({ params, tenant }) => {
    const id = params.id!
    const isLive = live.end(tenant, id, 'stopped')
    // A call that is paused, or not yet read by a resume, is forgotten.
    if (live.drop(tenant, id) || isLive) return json({ status: 'cancelled', request_id: id })
    throw new SkeinError('not_found', 'no request of that id is under way or paused', { param: 'id' })
  })
  return { ...route, inCluster: 'every' }
}
