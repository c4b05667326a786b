/** POST /completion, as llama.cpp's: one prompt without a template, and figures of how fast it was answered. */
import type { GenerateRequest } from '../../engine/messages.ts'
import { concatTokens } from '../../files/bytes.ts'
import { runAll } from '../answers.ts'
import { checkPrompt, encodePrompt } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { chatLogprob } from '../openai/logprobs.ts'
import { type SamplingDefaults, toSampling, toStop } from '../openai/sampling.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import { type CompletionBody, checkBody, completionBody, constraintOf, maxTokensOf, samplingFieldsOf } from './body.ts'

export const LLAMA_DEFAULTS: SamplingDefaults = {
  temperature: 0.8,
  topK: 40,
  topP: 0.95,
  minP: 0.05,
  penaltyDecay: 1,
}

export function completionRoute(limits: RequestLimits): Route {
  const summary = 'Continue a prompt, as llama.cpp does'
  const body = completionBody(limits)
  const read = Object.keys(body.properties)
  return post('/completion', summary, body, async (call): Promise<Reply> => {
    checkBody(call.body, read, call)
    const job = await prepare(call)
    if (call.body.stream === true) return { kind: 'events', events: streamed(job) }
    return json(await whole(job))
  })
}

interface Job {
  readonly body: CompletionBody
  readonly model: ServedModel
  readonly request: GenerateRequest
  readonly signal: AbortSignal
}

async function prepare(call: Call<CompletionBody>): Promise<Job> {
  const { body, limits, signal, tenant } = call
  const model = call.models.get(body.model)
  const fields = samplingFieldsOf(body)
  const constraint = constraintOf(body)
  const request = {
    id: `cmpl-${call.id}`,
    prompt: await promptOf(call, model),
    n: 1,
    maxTokens: maxTokensOf(body, limits),
    sampling: toSampling(fields, model, LLAMA_DEFAULTS),
    stop: toStop(fields, [], model, limits),
    logprobs: body.n_probs ? body.n_probs : null,
    promptLogprobs: null,
    tenant,
    cache: 'use',
    ...(constraint === null ? {} : { constraint }),
  } as const
  return { body, model, request, signal }
}

/** Text and tokens mixed as the client likes. */
async function promptOf({ body: { prompt }, signal }: Call<CompletionBody>, model: ServedModel): Promise<Int32Array> {
  if (typeof prompt === 'string') return encodePrompt(model, prompt, 'prompt', signal)
  const parts: Int32Array[] = []
  for (const part of prompt) {
    if (typeof part === 'number') parts.push(Int32Array.of(part))
    else if (part !== '') parts.push(await encodePrompt(model, part, 'prompt', signal))
  }
  return checkPrompt(concatTokens(parts), model, 'prompt')
}

async function whole(job: Job): Promise<object> {
  const text: string[] = []
  const tokens: number[] = []
  const scores: object[] = []
  let last: object = {}
  for await (const piece of pieces(job)) {
    text.push(piece.content)
    tokens.push(...piece.tokens)
    scores.push(...piece.scores)
    last = piece.rest
  }
  return { ...objectOf(job, text.join(''), tokens, scores), ...last }
}

async function* streamed(job: Job): AsyncGenerator<object> {
  for await (const { content, tokens, scores, rest } of pieces(job)) {
    yield { ...objectOf(job, content, tokens, scores), ...rest }
  }
}

function objectOf(
  { body, request }: Job,
  content: string,
  tokens: readonly number[],
  scores: readonly object[],
): object {
  return {
    index: 0,
    content,
    tokens: body.return_tokens === true || body.stream === true ? tokens : [],
    ...(request.logprobs === null ? {} : { completion_probabilities: scores }),
  }
}

interface Piece {
  readonly content: string
  readonly tokens: readonly number[]
  readonly scores: readonly object[]
  readonly rest: object
}

async function* pieces({ model, request, signal }: Job): AsyncGenerator<Piece> {
  const began = performance.now()
  let readAt = began
  let cached = 0
  const numRead = request.prompt.length
  for await (const { event } of runAll(model.client, [request], signal)) {
    if (event.type === 'prompt') {
      readAt = performance.now()
      cached = event.cachedTokens ?? 0
    } else if (event.type === 'text') {
      const { text: content, tokens, logprobs } = event
      const scores = (logprobs ?? []).map((score, i) => ({ id: tokens[i], ...chatLogprob(score) }))
      yield { content, tokens, scores, rest: { stop: false } }
    } else {
      const { reason, matched, completionTokens } = event
      const answerMs = performance.now() - readAt
      const isWord = typeof matched === 'string'
      const rest = {
        stop: true,
        id_slot: -1,
        model: model.id,
        tokens_predicted: completionTokens,
        tokens_evaluated: numRead,
        tokens_cached: cached,
        truncated: false,
        stop_type: reason === 'length' ? 'limit' : isWord ? 'word' : 'eos',
        stopping_word: isWord ? matched : '',
        timings: timingsOf(numRead - cached, readAt - began, completionTokens, answerMs),
      }
      yield { content: '', tokens: [], scores: [], rest }
    }
  }
}

/** `ms` of reading the prompt and of answering. */
function timingsOf(numRead: number, readMs: number, numDrawn: number, answerMs: number): object {
  const perSecond = (tokens: number, ms: number) => (ms > 0 ? (1000 * tokens) / ms : 0)
  return {
    prompt_n: numRead,
    prompt_ms: readMs,
    prompt_per_token_ms: numRead > 0 ? readMs / numRead : 0,
    prompt_per_second: perSecond(numRead, readMs),
    predicted_n: numDrawn,
    predicted_ms: answerMs,
    predicted_per_token_ms: numDrawn > 0 ? answerMs / numDrawn : 0,
    predicted_per_second: perSecond(numDrawn, answerMs),
  }
}
