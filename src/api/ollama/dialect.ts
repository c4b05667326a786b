import { type Static, Type } from '../../files/schema-types.ts'
import { embedAll } from '../embeddings/embeddings.ts'
import { checkPrompt, encodeTexts } from '../encode.ts'
import type { UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { type Call, type Dialect, json, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe, OneOf } from '../schema.ts'
import { NDJSON } from '../stream-form.ts'
import { chatRoute } from './chat.ts'
import { fileRoutes } from './files.ts'
import { generateRoute } from './generate.ts'
import { modelOf, modelRoutes } from './models.ts'

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
    renderError: ({ message }) => ({ error: message }),
  }
}

/** `options` are about answers, but for the length of a context, which there is none of. */
const UNREAD: UnreadFields = { harmless: ['keep_alive', 'options'], refused: {} }

function embedBody(limits: RequestLimits) {
  const most = limits.embeddingInputs
  return Type.Object({
    model: Type.String(),
    input: Maybe(
      OneOf(`a text or a list of at most ${most}`, Type.String(), Type.Array(Type.String(), { maxItems: most })),
    ),
    truncate: Maybe(Type.Boolean()),
    dimensions: Maybe(BoundedInteger(1, 65_536)),
  })
}

const EMBEDDINGS_BODY = Type.Object({ model: Type.String(), prompt: Maybe(Type.String()) })

/** Texts to vectors: /api/embed, and the older /api/embeddings for a single one. */
function embedRoutes(limits: RequestLimits): Route[] {
  return [
    post('/api/embed', 'Texts to vectors', embedBody(limits), embed, UNREAD),
    post('/api/embeddings', 'One text to a vector', EMBEDDINGS_BODY, embedOne, UNREAD),
  ]
}

async function embed(call: Call<Static<ReturnType<typeof embedBody>>>): Promise<Reply> {
  const { input, truncate, dimensions } = call.body
  const begin = process.hrtime.bigint()
  const model = modelOf(call.models, call.body.model)
  // Without a text a client only wants the model to be there.
  const texts = (typeof input === 'string' ? [input] : (input ?? [])).filter((text) => text !== '')
  const tokens = await tokensOf(model, texts, truncate !== false, call.signal)
  const { vectors, numTokens } = await embedAll(model, tokens, dimensions ?? null, call)
  return json({
    model: call.body.model,
    embeddings: vectors.map((vector) => [...vector]),
    total_duration: Number(process.hrtime.bigint() - begin),
    load_duration: 0,
    prompt_eval_count: numTokens,
  })
}

async function embedOne(call: Call<Static<typeof EMBEDDINGS_BODY>>): Promise<Reply> {
  const model = modelOf(call.models, call.body.model)
  const texts = call.body.prompt ? [call.body.prompt] : []
  const tokens = await tokensOf(model, texts, true, call.signal)
  const { vectors } = await embedAll(model, tokens, null, call)
  return json({ embedding: [...(vectors[0] ?? [])] })
}

/** A text that is too long is cut at its end, unless the request forbids it. */
async function tokensOf(model: ServedModel, texts: readonly string[], isCut: boolean, signal: AbortSignal) {
  const all = await encodeTexts(model, texts, signal)
  const { maxPromptTokens, embeddingTasks } = model.client.info
  // Behind the text may come a token that ends it.
  const most = maxPromptTokens - (embeddingTasks === undefined ? 0 : 1)
  return all.map((tokens, i) => checkPrompt(isCut ? tokens.subarray(0, most) : tokens, model, `input[${i}]`))
}
