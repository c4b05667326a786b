/** Turns a text to fill in, from either editor dialect, into a request of the engine, and the answer into one text. */
import type { FinishReason, GenerateRequest } from '../../engine/messages.ts'
import { runAll } from '../answers.ts'
import { encodePrompt } from '../encode.ts'
import type { ServedModel } from '../models.ts'
import { refuseUnread } from '../openai/parameters.ts'
import {
  cacheOf,
  checkCombinations,
  type SamplingDefaults,
  type SamplingFields,
  toSampling,
  toStop,
} from '../openai/sampling.ts'
import type { Call } from '../route.ts'
import { refuseSession } from '../sessions/use.ts'

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
  /** Fields the route reads besides those of sampling. */
  readonly honoured: readonly string[]
}

export async function toFill(
  call: Call<SamplingFields>,
  prompt: string,
  { defaults, maxTokens, param, honoured }: FillOptions,
): Promise<Fill> {
  const { body, limits, signal, tenant } = call
  refuseUnread(body, ['prompt', 'best_of', 'stream_options', ...honoured])
  checkCombinations(body)
  refuseSession(body, 'use /v1/completions')
  const model = call.models.get(body.model)
  const settings = {
    n: 1,
    maxTokens,
    sampling: toSampling(body, model, defaults),
    stop: toStop(body, [], model, limits),
    logprobs: null,
    promptLogprobs: null,
    tenant,
    cache: cacheOf(body),
  }
  const tokens = await encodePrompt(model, prompt, param, signal)
  return { model, request: { id: `fim-${call.id}`, prompt: tokens, ...settings }, signal }
}

export interface Filled {
  text: string
  readonly promptTokens: number
  cachedTokens: number
  completionTokens: number
  reason: FinishReason
  matched: string | number | null
  /** Milliseconds from the start to the end of the prompt, and from there to the end of the answer. */
  promptMs: number
  answerMs: number
}

/** Yields the pieces of the text; returns all there is to say when it has ended. */
export async function* fill({ model, request, signal }: Fill): AsyncGenerator<string, Filled> {
  const began = performance.now()
  const filled: Filled = {
    text: '',
    promptTokens: request.prompt.length,
    cachedTokens: 0,
    completionTokens: 0,
    reason: 'stop',
    matched: null,
    promptMs: 0,
    answerMs: 0,
  }
  for await (const { event } of runAll(model.client, [request], signal)) {
    if (event.type === 'prompt') {
      filled.promptMs = performance.now() - began
      filled.cachedTokens = event.cachedTokens ?? 0
    } else if (event.type === 'finish') {
      filled.completionTokens = event.completionTokens
      filled.reason = event.reason
      filled.matched = event.matched
      filled.answerMs = performance.now() - began - filled.promptMs
    } else if (event.text !== '') {
      filled.text += event.text
      yield event.text
    }
  }
  return filled
}

export async function fillWhole(job: Fill): Promise<Filled> {
  const run = fill(job)
  let step = await run.next()
  while (!step.done) step = await run.next()
  return step.value
}

/**
 * The prompt that RWKV-7 G1c models were trained on for filling in the middle: the text after the gap comes first, then
 * the model continues the text before it. The slot named "prefix" stays empty.
 */
export function fimPrompt(prefix: string, suffix: string): string {
  return `✿prefix✿✿suffix✿${suffix}✿middle✿${prefix}`
}
