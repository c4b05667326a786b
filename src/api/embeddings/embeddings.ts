/** POST /v1/embeddings, OpenAI's, and at the older paths of RWKV-Runner. */

import type { EmbeddingTask } from '../../engine/messages.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { invalid } from '../openai/sampling.ts'
import { listOf, promptList, tokensOfAll } from '../prompt-list.ts'
import { type Call, json, post, type Route } from '../route.ts'
import { BoundedInteger, Maybe, OneOf } from '../schema.ts'
import { urgencyFields } from '../urgency.ts'
import { checkEmbeds, embedAll } from './vectors.ts'

const PATHS = [
  '/v1/embeddings',
  '/embeddings',
  '/v1/engines/text-embedding-ada-002/embeddings',
  '/engines/text-embedding-ada-002/embeddings',
]

/** Fields of others that would change the vectors, at the values where they do not. */
const UNREAD: UnreadFields = {
  harmless: ['user', 'request_id', 'add_special_tokens'],
  refused: {
    // vLLM's
    truncate_prompt_tokens: [-1],
    messages: [],
    normalize: [true],
    use_activation: [true],
    // RWKV-Runner's
    fast_mode: [false],
  },
}

/** Jina's words for what the vectors are for. */
const TASKS: Readonly<Record<string, EmbeddingTask>> = {
  'retrieval.query': 'retr',
  'retrieval.passage': 'retr',
  'text-matching': 'sts',
  classification: 'cls',
}

function embeddingBody(limits: RequestLimits) {
  return Type.Object({
    model: Maybe(Type.String()),
    ...urgencyFields(),
    input: promptList(limits.embeddingInputs),
    encoding_format: Maybe(OneOf('"float" or "base64"', Type.Enum(['float', 'base64']))),
    dimensions: Maybe(BoundedInteger(1, 65_536)),
    task: Maybe(OneOf(`one of ${Object.keys(TASKS).join(', ')}`, Type.Enum(Object.keys(TASKS)))),
  })
}

export function embeddingRoutes(limits: RequestLimits): Route[] {
  const body = embeddingBody(limits)
  const summary = 'Texts to vectors'
  return PATHS.map((path) => post(path, summary, body, async (call) => json(await embeddings(call)), UNREAD))
}

async function embeddings(call: Call<Static<ReturnType<typeof embeddingBody>>>): Promise<object> {
  const { input, encoding_format, dimensions, task } = call.body
  const model = call.models.get(call.body.model)
  checkEmbeds(model)
  const head = task == null ? undefined : TASKS[task]
  if (head !== undefined && !model.client.info.embeddingTasks?.includes(head))
    throw notRead('task', `${model.id} has no head for it`)
  const list = listOf(input)
  if (list.some(({ length }) => length === 0))
    throw invalid('input', 'has an empty text; expected at least one token in each')
  const texts = await tokensOfAll(list, model, 'input', call.signal)
  const { vectors, numTokens } = await embedAll(model, texts, dimensions ?? null, call, head)
  const written = encoding_format === 'base64' ? base64 : (vector: Float32Array) => [...vector]
  return {
    object: 'list',
    data: vectors.map((vector, index) => {
      return { object: 'embedding', index, embedding: written(vector) }
    }),
    model: model.id,
    usage: { prompt_tokens: numTokens, total_tokens: numTokens },
  }
}

/** Little-endian f32, as every machine that this runs on has them. */
function base64({ buffer, byteOffset, byteLength }: Float32Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64')
}
