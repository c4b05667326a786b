/**
 * Texts to vectors, for every dialect that asks for embeddings: each is read once and its final hidden state, as the
 * model's server was told to pool it, becomes a vector of length 1.
 */
import { type EmbeddingTask, type GenerateRequest, PLAIN_SAMPLING } from '../../engine/messages.ts'
import { assert, SkeinError } from '../../errors.ts'
import { runAll } from '../answers.ts'
import type { ServedModel } from '../models.ts'
import type { Call } from '../route.ts'

interface Embedded {
  /** One for each text; all of length 1. */
  readonly vectors: readonly Float32Array[]
  readonly numTokens: number
}

/** Throws unsupported_parameter where the model gives none, before anything is read. */
export function checkEmbeds({ id, client }: ServedModel): void {
  if (client.info.embeddings !== undefined) return
  throw new SkeinError(
    'unsupported_parameter',
    `model: ${id} was not trained to give embeddings; to have its final hidden state as one all the same, start the server with --embeddings mean (or last)`,
    { param: 'model' },
  )
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
  if (dimensions !== null && dimensions > channels) {
    const message = `dimensions: ${model.id} has ${channels}; expected at most as many`
    throw new SkeinError('invalid_request', message, { param: 'dimensions' })
  }
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
export const READ_ONLY = {
  n: 1,
  maxTokens: 0,
  sampling: PLAIN_SAMPLING,
  stop: { strings: [], tokens: [], ignoreEos: false },
  logprobs: null,
  promptLogprobs: null,
  cache: 'no-store',
} as const

/** A vector of zeros stays as it is. */
function unit(vector: Float32Array): Float32Array {
  const length = Math.sqrt(dot(vector, vector))
  return length === 0 ? vector : vector.map((value) => value / length)
}

/** For vectors of length 1: the cosine of the angle between them. */
export function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0)
}
