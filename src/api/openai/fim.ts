/**
 * Texts to fill in: POST /v1/fim/completions, as Mistral's, with the shape of a chat completion; and, for the other
 * dialects that do the same, such a text as a request of the engine, and the answer as one text.
 */

import { type FinishReason, type GenerateRequest, PLAIN_REQUEST } from '../../engine/messages.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { drained, runAll } from '../answers.ts'
import { encodePrompt } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { refuseSession } from '../sessions/use.ts'
import { UNREAD } from './parameters.ts'
import {
  cacheOf,
  checkCombinations,
  type SamplingDefaults,
  type SamplingFields,
  samplingFields,
  toSampling,
  toStop,
} from './sampling.ts'
import { usageOf } from './usage.ts'

/** Code wants few surprises. */
const DEFAULTS: SamplingDefaults = { temperature: 0.2 }
const DEFAULT_TOKENS = 256

export function mistralFimRoute(limits: RequestLimits): Route {
  const body = Type.Object({
    ...samplingFields(limits),
    n: Maybe(BoundedInteger(1, 1)),
    max_tokens: Maybe(BoundedInteger(1, limits.maxTokens)),
    prompt: Type.String(),
    suffix: Maybe(Type.String()),
    random_seed: Maybe(BoundedInteger(0, 2 ** 53 - 1)),
  })
  const handle = async (call: Call<Static<typeof body>>) => {
    const { prompt, suffix, random_seed, max_tokens, stream } = call.body
    const seeded = { ...call.body, seed: call.body.seed ?? random_seed ?? null }
    const job = await toFill({ ...call, body: seeded }, fimPrompt(prompt, suffix ?? ''), {
      defaults: DEFAULTS,
      maxTokens: max_tokens ?? DEFAULT_TOKENS,
      param: 'prompt',
    })
    return await replyOf(job, stream === true, call.now)
  }
  return post('/v1/fim/completions', 'Fill in between prompt and suffix', body, handle, UNREAD)
}

async function replyOf(job: Fill, isStream: boolean, created: number): Promise<Reply> {
  const head = { id: job.request.id, created, model: job.model.id }
  if (isStream) return { kind: 'events', events: events(job, head) }
  const filled = await drained(fill(job))
  const message = { role: 'assistant', content: filled.text }
  return json({
    ...head,
    object: 'chat.completion',
    choices: [{ index: 0, message, finish_reason: filled.reason }],
    usage: usage(filled),
  })
}

async function* events(job: Fill, head: object): AsyncGenerator<object> {
  const chunk = (delta: object, reason: string | null) => ({
    ...head,
    object: 'chat.completion.chunk',
    choices: [{ index: 0, delta, finish_reason: reason }],
  })
  const run = fill(job)
  let step = await run.next()
  // Not before: until the first event what fails is still a proper HTTP error.
  yield chunk({ role: 'assistant', content: '' }, null)
  for (; !step.done; step = await run.next()) yield chunk({ content: step.value }, null)
  yield { ...chunk({ content: '' }, step.value.reason), usage: usage(step.value) }
}

function usage({ promptTokens, completionTokens, cachedTokens }: Filled): object {
  return usageOf(promptTokens, completionTokens, null, cachedTokens)
}

export interface Fill {
  readonly model: ServedModel
  readonly request: GenerateRequest
  readonly signal: AbortSignal
}

interface FillOptions {
  readonly defaults: SamplingDefaults
  readonly maxTokens: number
  /** Field that a complaint about the prompt names. */
  readonly param: string
}

export async function toFill(
  call: Call<SamplingFields>,
  prompt: string,
  { defaults, maxTokens, param }: FillOptions,
): Promise<Fill> {
  const { body, limits, signal, tenant } = call
  checkCombinations(body)
  refuseSession(body, 'use /v1/completions')
  const model = call.models.get(body.model)
  const settings = {
    ...PLAIN_REQUEST,
    maxTokens,
    sampling: toSampling(body, model, defaults),
    stop: toStop(body, [], model, limits),
    tenant,
    cache: cacheOf(body),
  }
  const tokens = await encodePrompt(model, prompt, param, signal)
  return { model, request: { id: `fim-${call.id}`, prompt: tokens, ...settings }, signal }
}

interface Filled {
  text: string
  readonly promptTokens: number
  cachedTokens: number
  completionTokens: number
  reason: FinishReason
}

/** Yields the pieces of the text; returns all there is to say when it has ended. */
export async function* fill({ model, request, signal }: Fill): AsyncGenerator<string, Filled> {
  const filled: Filled = {
    text: '',
    promptTokens: request.prompt.length,
    cachedTokens: 0,
    completionTokens: 0,
    reason: 'stop',
  }
  for await (const { event } of runAll(model.client, [request], signal)) {
    if (event.type === 'prompt') {
      filled.cachedTokens = event.cachedTokens ?? 0
    } else if (event.type === 'finish') {
      filled.completionTokens = event.completionTokens
      filled.reason = event.reason
    } else if (event.text !== '') {
      filled.text += event.text
      yield event.text
    }
  }
  return filled
}

/**
 * The prompt that RWKV-7 G1c models were trained on for filling in the middle: the text after the gap comes first, then
 * the model continues the text before it. The slot named "prefix" stays empty.
 */
export function fimPrompt(prefix: string, suffix: string): string {
  return `✿prefix✿✿suffix✿${suffix}✿middle✿${prefix}`
}
