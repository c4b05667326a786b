/**
 * POST /v1/rerank, in the form of Jina and Cohere as vLLM has it: documents in the order of how near they are to a query, by
 * the model's reranker where it has one, else by the cosine of their embeddings.
 */

import type { GenerateRequest } from '../../engine/messages.ts'
import { assert } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { runAll } from '../answers.ts'
import { encodePrompts } from '../encode.ts'
import type { UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { type Call, json, post, type Route } from '../route.ts'
import { BoundedInteger, Maybe, OneOf, urgencyFields } from '../schema.ts'
import { checkEmbeds, dot, embedAll, ended, READ_ONLY } from './embeddings.ts'

const PATHS = ['/v1/rerank', '/rerank', '/v2/rerank']

const UNREAD: UnreadFields = {
  harmless: ['user', 'request_id'],
  refused: {
    max_chunks_per_doc: [],
    max_tokens_per_doc: [],
    rank_fields: [[], ['text']],
    truncate_prompt_tokens: [-1],
  },
}

function rerankBody(limits: RequestLimits) {
  const text = Type.String({ minLength: 1 })
  return Type.Object({
    model: Maybe(Type.String()),
    ...urgencyFields(),
    query: text,
    documents: Type.Array(
      OneOf('a text or an object with `text`', text, Type.Object({ text })),
      // The query is one, too.
      { minItems: 1, maxItems: limits.embeddingInputs - 1 },
    ),
    top_n: Maybe(BoundedInteger(0, 2 ** 31 - 1)),
    return_documents: Maybe(Type.Boolean()),
  })
}

export function rerankRoutes(limits: RequestLimits): Route[] {
  const body = rerankBody(limits)
  const summary = 'Documents by how near they are to a query'
  return PATHS.map((path) => post(path, summary, body, async (call) => json(await ranked(call)), UNREAD))
}

type RerankCall = Call<Static<ReturnType<typeof rerankBody>>>

async function ranked(call: RerankCall): Promise<object> {
  const { query, documents, top_n, return_documents } = call.body
  const model = call.models.get(call.body.model)
  const texts = documents.map((one) => (typeof one === 'string' ? one : one.text))
  const score = model.client.info.ranks === true ? byStates : byVectors
  const { scores, numTokens } = await score(model, query, texts, call)
  const results = scores.map((relevance_score, index) => ({
    index,
    ...(return_documents === false ? {} : { document: { text: texts[index]! } }),
    relevance_score,
  }))
  results.sort((a, b) => b.relevance_score - a.relevance_score)
  return {
    id: `rerank-${call.id}`,
    model: model.id,
    usage: { total_tokens: numTokens },
    // 0 is vLLM's word for all.
    results: results.slice(0, top_n || results.length),
  }
}

interface Scores {
  readonly scores: readonly number[]
  readonly numTokens: number
}

async function byVectors(model: ServedModel, query: string, texts: readonly string[], call: RerankCall) {
  checkEmbeds(model)
  const paramOf = (i: number) => (i === 0 ? 'query' : `documents[${i - 1}]`)
  const tokens = await encodePrompts(model, [query, ...texts], paramOf, call.signal)
  const { vectors, numTokens } = await embedAll(model, tokens, null, call)
  const [asked, ...others] = vectors
  return { scores: others.map((vector) => dot(asked!, vector)), numTokens }
}

/** The probability that the reranker gives each document, which it reads with the query. */
async function byStates(
  model: ServedModel,
  query: string,
  texts: readonly string[],
  { id, tenant, signal }: RerankCall,
): Promise<Scores> {
  // The form that EmbeddingRWKV's rerankers were trained to read.
  const instruction = 'Instruct: Given a query, retrieve documents that answer the query'
  const pairs = texts.map((text) => `${instruction}\nDocument: ${text}\nQuery: ${query}`)
  const tokens = await encodePrompts(model, pairs, (i) => `documents[${i}]`, signal)
  const prompts = tokens.map(ended)
  const requests = prompts.map((prompt, i): GenerateRequest => {
    return { ...READ_ONLY, id: `rank-${id}-${i}`, tenant, prompt, isRanked: true }
  })
  const scores: number[] = []
  for await (const { prompt, event } of runAll(model.client, requests, signal)) {
    if (event.type !== 'prompt') continue
    assert(event.score !== undefined, 'the engine gave no score')
    scores[prompt] = 1 / (1 + Math.exp(-event.score))
  }
  return { scores, numTokens: prompts.reduce((sum, { length }) => sum + length, 0) }
}
