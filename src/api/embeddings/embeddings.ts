/**
 * POST /v1/embeddings, OpenAI's, and at the older paths of RWKV-Runner; and texts to vectors, for every dialect that asks
 * for them. A text is read once, and its final hidden state, pooled as the server was told, is scaled to length 1.
 */
import { type EmbeddingTask, type GenerateRequest, PLAIN_REQUEST } from '../../engine/messages.ts'
import { assert, invalid, notImplemented } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { runAll } from '../answers.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { listOf, promptList, tokensOfAll } from '../prompt-list.ts'
import { type Call, json, post, type Route } from '../route.ts'
import { BoundedInteger, Maybe, OneOf, urgencyFields } from '../schema.ts'

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
    data: vectors.map((vector, index) => ({ object: 'embedding', index, embedding: written(vector) })),
    model: model.id,
    usage: { prompt_tokens: numTokens, total_tokens: numTokens },
  }
}

/** Little-endian f32, as every machine that this runs on has them. */
function base64({ buffer, byteOffset, byteLength }: Float32Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64')
}

interface Embedded {
  /** One for each text; all of length 1. */
  readonly vectors: readonly Float32Array[]
  readonly numTokens: number
}

/** Throws unsupported_parameter where the model gives none, before anything is read. */
export function checkEmbeds({ id, client }: ServedModel): void {
  if (client.info.embeddings !== undefined) return
  const message = `${id} was not trained to give embeddings; to have its final hidden state as one all the same, start the server with --embeddings mean (or last)`
  throw notImplemented('model', message)
}

/** `dimensions`: keep this many numbers of each vector, scaled to length 1 again; null: all. */
export async function embedAll(
  model: ServedModel,
  texts: readonly Int32Array[],
  dimensions: number | null,
  { id, tenant, signal }: Pick<Call, 'id' | 'tenant' | 'signal'>,
  task: EmbeddingTask = 'retr',
): Promise<Embedded> {
  checkEmbeds(model)
  const { embeddings, embeddingTasks, model: info } = model.client.info
  const { channels } = info.stateShape
  if (dimensions !== null && dimensions > channels)
    throw invalid('dimensions', `${model.id} has ${channels}; expected at most as many`)
  const prompts = embeddingTasks === undefined ? texts : texts.map(ended)
  const head = embeddingTasks === undefined ? {} : { embeddingTask: task }
  const requests = prompts.map((prompt, i): GenerateRequest => {
    return { ...READ_ONLY, id: `embd-${id}-${i}`, tenant, prompt, embedding: embeddings, ...head }
  })
  const vectors: Float32Array[] = []
  for await (const { prompt, event } of runAll(model.client, requests, signal)) {
    if (event.type !== 'prompt') continue
    assert(event.embedding !== undefined, 'the engine gave no embedding')
    vectors[prompt] = unit(event.embedding.subarray(0, dimensions ?? channels))
  }
  return { vectors, numTokens: prompts.reduce((sum, { length }) => sum + length, 0) }
}

/** Models of embeddings were trained with a token of their own behind each text. */
const END = 65_535

export function ended(text: Int32Array): Int32Array {
  if (text.at(-1) === END) return text
  const whole = new Int32Array(text.length + 1)
  whole.set(text)
  whole[text.length] = END
  return whole
}

/** For requests that only read. */
export const READ_ONLY = { ...PLAIN_REQUEST, maxTokens: 0, cache: 'no-store' } as const

/** A vector of zeros stays as it is. */
function unit(vector: Float32Array): Float32Array {
  const length = Math.sqrt(dot(vector, vector))
  return length === 0 ? vector : vector.map((value) => value / length)
}

/** For vectors of length 1: the cosine of the angle between them. */
export function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0)
}
