/**
 * POST /v1/rerank, in the form of Jina and Cohere as vLLM has it: documents in the order of how near they are to a query, by
 * the cosine of their embeddings.
 */
import Type, { type Static } from 'typebox'
import { encodePrompts } from '../encode.ts'
import { checkFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe, OneOf } from '../schema.ts'
import { urgencyFields } from '../urgency.ts'
import { checkEmbeds, dot, embedAll } from './vectors.ts'

const PATHS = ['/v1/rerank', '/rerank', '/v2/rerank']

const REFUSED = {
  max_chunks_per_doc: [],
  max_tokens_per_doc: [],
  rank_fields: [[], ['text']],
  truncate_prompt_tokens: [-1],
}
const HARMLESS = ['user', 'request_id']

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
  const read = Object.keys(body.properties)
  const handle = async (call: Call<Static<typeof body>>): Promise<Reply> => {
    checkFields(call.body, { read, harmless: HARMLESS, refused: REFUSED }, call.warn)
    return json(await ranked(call))
  }
  return PATHS.map((path) => post(path, 'Documents by how near they are to a query', body, handle))
}

async function ranked(call: Call<Static<ReturnType<typeof rerankBody>>>): Promise<object> {
  const { query, documents, top_n, return_documents } = call.body
  const model = call.models.get(call.body.model)
  checkEmbeds(model)
  const texts = documents.map((one) => (typeof one === 'string' ? one : one.text))
  const paramOf = (i: number) => (i === 0 ? 'query' : `documents[${i - 1}]`)
  const tokens = await encodePrompts(model, [query, ...texts], paramOf, call.signal)
  const { vectors, numTokens } = await embedAll(model, tokens, null, call)
  const [asked, ...others] = vectors
  const results = others.map((vector, index) => ({
    index,
    ...(return_documents === false ? {} : { document: { text: texts[index]! } }),
    relevance_score: dot(asked!, vector),
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
