/** The options that Ollama's two answering routes share, and their conversion to the engine's numbers. */

import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { ANY_OBJECT, type Constraint } from '../../grammar/constraint.ts'
import { type Thinking, thinking, thinkingOf } from '../chat/conversation.ts'
import { checkFields, notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import {
  checkLogprobs,
  ignoredWindow,
  localNumberFields,
  present,
  type SamplingDefaults,
  type SamplingFields,
  Stop,
  toSampling,
  toStop,
  usualNumbers,
} from '../openai/sampling.ts'
import type { Call } from '../route.ts'
import { AnyObject, BoundedInteger, Maybe, OneOf, urgencyFields } from '../schema.ts'

/** Ollama's own, but for `repeat_penalty`: 1.1 over a whole conversation drives an RWKV model off its words. */
export const OLLAMA_DEFAULTS: SamplingDefaults = { temperature: 0.8, topK: 40, topP: 0.9 }

function optionFields(limits: RequestLimits) {
  return {
    seed: Maybe(BoundedInteger(-(2 ** 63), 2 ** 64)),
    num_predict: Maybe(BoundedInteger(-2, limits.maxTokens)),
    ...localNumberFields(),
    stop: Maybe(Stop(limits)),
  }
}

export function sharedFields(limits: RequestLimits) {
  return {
    model: Type.String(),
    stream: Maybe(Type.Boolean()),
    ...urgencyFields(),
    options: Maybe(Type.Object(optionFields(limits))),
    format: Maybe(OneOf('"json" or a JSON schema', Type.String(), AnyObject)),
    think: Maybe(OneOf('true, false, "low", "medium" or "high"', Type.Boolean(), Type.String())),
    keep_alive: Maybe(OneOf('seconds, or text like "5m"', Type.Number(), Type.String())),
    logprobs: Maybe(Type.Boolean()),
    top_logprobs: Maybe(BoundedInteger(0, limits.topLogprobs)),
  }
}

type SharedBody = Static<ReturnType<typeof Type.Object<ReturnType<typeof sharedFields>>>>
type Options = Static<ReturnType<typeof Type.Object<ReturnType<typeof optionFields>>>>
/** Fields of the options that this server does not read. An RWKV model has no window to bound and no layers to place. */
export const UNREAD_OPTIONS: UnreadFields = {
  harmless: [
    'f16_kv',
    'low_vram',
    'main_gpu',
    'num_batch',
    'num_ctx',
    'num_gpu',
    'num_keep',
    'num_thread',
    'numa',
    'use_mlock',
    'use_mmap',
  ],
  refused: {
    embedding_only: [false],
    logits_all: [false],
    mirostat: [0],
    penalize_newline: [true],
    tfs_z: [1],
    typical_p: [1],
    vocab_only: [false],
  },
  warned: { repeat_last_n: ignoredWindow },
}
/** Parameters of a sampler that is off. */
const MIROSTAT = ['mirostat_tau', 'mirostat_eta']

export function checkOptions(options: Options, limits: RequestLimits, { warn }: Pick<Call, 'warn'>): void {
  const read = [...Object.keys(optionFields(limits)), ...MIROSTAT]
  checkFields(options, { ...UNREAD_OPTIONS, read, at: 'options.' }, warn)
}

function samplingOf(options: Options, model: ServedModel, limits: RequestLimits) {
  const fields = samplingFieldsOf(options)
  return { sampling: toSampling(fields, model, OLLAMA_DEFAULTS), stop: toStop(fields, [], model, limits) }
}

/** In the words of the OpenAI dialect. */
export function samplingFieldsOf(options: Options): SamplingFields {
  const { repeat_penalty: _renamed, num_predict: _length, ...same } = options
  return { ...same, ...usualNumbers(options) }
}

export function chatSettings({ body, id, limits, signal, tenant }: Call<SharedBody>, model: ServedModel) {
  const options = body.options ?? {}
  const maxTokens = maxTokensOf(options, limits)
  const logprobs = body.logprobs === true ? (body.top_logprobs ?? 0) : null
  checkLogprobs({ stream: body.stream !== false }, { numAnswers: 1, maxTokens, logprobs }, limits)
  return {
    id: `ollama-${id}`,
    maxTokens,
    ...samplingOf(options, model, limits),
    logprobs,
    isGathered: body.stream === false,
    tenant,
    model,
    thinking: thinkOf(body.think),
    constraint: constraintOf(body.format),
    signal,
  } as const
}

/** −1 and −2, and 0, mean "until it ends"; there is a limit all the same. */
export function maxTokensOf({ num_predict: asked }: Options, limits: RequestLimits): number {
  return present(asked) && asked > 0 ? asked : limits.defaultChatTokens
}

function constraintOf(format: unknown): Constraint | null {
  if (!present(format) || format === '') return null
  if (format === 'json') return ANY_OBJECT
  if (typeof format === 'string') throw invalid('format', 'expected "json" or a JSON schema')
  // The schema of the body allows a string or an object.
  return { type: 'schema', schema: format as { readonly [keyword: string]: unknown } }
}

function thinkOf(think: boolean | string | null | undefined): Thinking {
  if (!present(think)) return thinking('none')
  if (typeof think === 'boolean') return thinking(think ? 'open' : 'closed')
  const asked = thinkingOf(think)
  if (asked === null) throw invalid('think', 'expected true, false, "low", "medium" or "high"')
  return asked
}

export function refuseImages(images: unknown, param: string): void {
  if (Array.isArray(images) && images.length > 0) throw notRead(param, 'this model reads text only')
}
