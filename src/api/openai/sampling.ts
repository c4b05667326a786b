/**
 * The sampling and stopping fields that chat and plain completions share: their schema, and how they become the
 * engine's numbers. Defaults are OpenAI's: temperature 1, nothing cut, no penalties.
 */
import Type, { type Static } from 'typebox'
import type { SamplingParams, StopParams } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { Bounded, BoundedInteger, Maybe, OneOf, TokenId } from '../schema.ts'

/** The decay of RWKV's own tools; only requests that use their field names get it unasked. */
const RWKV_DECAY = 0.996

/** What a request that says nothing gets. Every family of routes has its own. */
export interface SamplingDefaults {
  readonly temperature: number
  /** 0 = off. */
  readonly topK: number
  readonly topP: number
  readonly presence: number
  readonly frequency: number
  /** Null: 1, or 0.996 once the request uses RWKV's names of the penalties. */
  readonly decay: number | null
}

const OPENAI_DEFAULTS: SamplingDefaults = {
  temperature: 1,
  topK: 0,
  topP: 1,
  presence: 0,
  frequency: 0,
  decay: null,
}

export function samplingFields(limits: RequestLimits) {
  const stopList = `a string or a list of at most ${limits.stops} strings`
  return {
    model: Maybe(Type.String()),
    stream: Maybe(Type.Boolean()),
    stream_options: Maybe(Type.Object({ include_usage: Maybe(Type.Boolean()) })),
    n: Maybe(BoundedInteger(1, limits.n)),
    best_of: Maybe(BoundedInteger(1, limits.n)),
    max_tokens: Maybe(BoundedInteger(0, limits.maxTokens)),
    temperature: Maybe(Bounded(0, 1000)),
    top_p: Maybe(Bounded(0, 1)),
    top_k: Maybe(BoundedInteger(-1, 2 ** 31 - 1)),
    min_p: Maybe(Bounded(0, 1)),
    presence_penalty: Maybe(Bounded(-100, 100)),
    frequency_penalty: Maybe(Bounded(-100, 100)),
    repetition_penalty: Maybe(Bounded(0.01, 100)),
    penalty_decay: Maybe(Bounded(0, 1)),
    alpha_presence: Maybe(Bounded(-100, 100)),
    alpha_frequency: Maybe(Bounded(-100, 100)),
    alpha_decay: Maybe(Bounded(0, 1)),
    seed: Maybe(BoundedInteger(-(2 ** 63), 2 ** 64)),
    stop: Maybe(
      OneOf(stopList, Type.String(), Type.Array(Type.String(), { maxItems: limits.stops })),
    ),
    stop_token_ids: Maybe(Type.Array(TokenId, { maxItems: limits.stops })),
    stop_tokens: Maybe(StopTokens(limits)),
    ignore_eos: Maybe(Type.Boolean()),
    logit_bias: Maybe(
      Type.Record(Type.String({ pattern: '^[0-9]{1,10}$' }), Bounded(-100, 100), {
        maxProperties: limits.logitBias,
        additionalProperties: false,
        description: 'token ids as the names of its fields',
      }),
    ),
    banned_tokens: Maybe(Type.Array(TokenId, { maxItems: limits.logitBias })),
    response_format: Maybe(Type.Object({ type: Type.String() })),
    cache: Maybe(
      Type.Unsafe<'use' | 'no-store'>({ type: 'string', enum: ['use', 'no-store', null] }),
    ),
  }
}

/** RWKV servers' one list for both: ids and strings, mixed as one likes. */
export function StopTokens(limits: RequestLimits) {
  const entry = OneOf('token ids and strings', TokenId, Type.String())
  return Type.Array(entry, { maxItems: 2 * limits.stops })
}

export type SamplingFields = Static<
  ReturnType<typeof Type.Object<ReturnType<typeof samplingFields>>>
>

export function toSampling(
  body: SamplingFields,
  model: ServedModel,
  defaults: SamplingDefaults = OPENAI_DEFAULTS,
): SamplingParams {
  const usesRwkvNames = present(body.alpha_presence) || present(body.alpha_frequency)
  const decay = defaults.decay ?? (usesRwkvNames ? RWKV_DECAY : 1)
  const own = model.mixture?.defaults
  return {
    temperature: body.temperature ?? own?.temperature ?? defaults.temperature,
    topK: Math.max(0, body.top_k ?? defaults.topK),
    topP: body.top_p ?? own?.topP ?? defaults.topP,
    minP: body.min_p ?? 0,
    presencePenalty: oneName(body, 'presence_penalty', 'alpha_presence') ?? defaults.presence,
    frequencyPenalty: oneName(body, 'frequency_penalty', 'alpha_frequency') ?? defaults.frequency,
    penaltyDecay: oneName(body, 'penalty_decay', 'alpha_decay') ?? decay,
    repetitionPenalty: body.repetition_penalty ?? 1,
    seed: present(body.seed) ? BigInt.asUintN(64, BigInt(body.seed)) : null,
    logitBias: toLogitBias(body.logit_bias ?? {}, model),
    bannedTokens: tokensOf(body.banned_tokens, 'banned_tokens', model),
  }
}

const LONE_SURROGATE = /\p{Surrogate}/u

/** `extra` are the stops of a chat template; they do not count against the client's. */
export function toStop(
  body: SamplingFields,
  extra: readonly string[],
  model: ServedModel,
  limits: RequestLimits,
): StopParams {
  const listed = body.stop_tokens ?? []
  const strings = typeof body.stop === 'string' ? [body.stop] : (body.stop ?? [])
  const among = listed.filter((entry) => typeof entry === 'string')
  checkStops(strings, 'stop', limits)
  checkStops(among, 'stop_tokens', limits)
  const ids = tokensOf(body.stop_token_ids, 'stop_token_ids', model)
  return {
    strings: [...new Set([...strings, ...among, ...extra])],
    tokens: [...new Set([...ids, ...drawable(listed, model)])],
    ignoreEos: body.ignore_eos ?? false,
  }
}

function checkStops(stops: readonly string[], param: string, { stopBytes }: RequestLimits): void {
  for (const stop of stops) {
    if (LONE_SURROGATE.test(stop))
      throw invalid(param, 'a stop string has half of a surrogate pair')
    const bytes = Buffer.byteLength(stop)
    if (bytes >= 1 && bytes <= stopBytes) continue
    throw invalid(param, `a stop string has ${bytes} bytes; expected 1 … ${stopBytes}`)
  }
}

/**
 * Ids that the model can draw. Clients of RWKV servers send ids of the World vocabulary ([0, 261, 24281]) to whatever
 * model there is; one that it does not have can stop nothing.
 */
function drawable(listed: readonly (number | string)[], model: ServedModel): number[] {
  const { vocabSize } = model.client.info.model
  return listed.filter((entry) => typeof entry === 'number').filter((id) => id < vocabSize)
}

/** `max_completion_tokens` is the newer name of `max_tokens`; null: neither. */
export function oneMaxTokens({
  max_tokens: old,
  max_completion_tokens: current,
}: {
  readonly max_tokens?: number | null
  readonly max_completion_tokens?: number | null
}): number | null {
  if (present(old) && present(current) && old !== current) {
    throw invalid('max_completion_tokens', 'it differs from max_tokens; send one of the two')
  }
  return current ?? old ?? null
}

/** Whether kept states may be used for this request, and left behind by it. */
export function cacheOf(body: SamplingFields): 'use' | 'no-store' {
  return body.cache ?? 'use'
}

/** Checks that belong to no single number: what may be combined, and what n and best_of may be. */
export function checkCombinations(body: SamplingFields): void {
  const n = body.n ?? 1
  if (present(body.best_of) && body.best_of !== 1 && body.best_of !== n) {
    throw new SkeinError(
      'unsupported_parameter',
      `best_of: got ${body.best_of}; this server returns every answer it draws, so expected n (${n})`,
      { param: 'best_of' },
    )
  }
  if (present(body.stream_options) && body.stream !== true) {
    throw invalid('stream_options', 'it needs "stream": true')
  }
  checkFormat(body)
}

/** Refuses replies that would be kept whole and could have more log-probabilities than there may be memory for. */
export function checkLogprobs(
  { stream }: SamplingFields,
  {
    numAnswers,
    maxTokens,
    logprobs,
  }: {
    readonly numAnswers: number
    readonly maxTokens: number
    readonly logprobs: number | null
  },
  limits: RequestLimits,
): void {
  if (stream === true || logprobs === null) return
  const asked = numAnswers * maxTokens * (1 + logprobs)
  if (asked <= limits.answerLogprobs) return
  throw new SkeinError(
    'too_large',
    `logprobs: up to ${asked} log-probabilities (answers × max_tokens × (1 + alternatives)) asked for in a reply that is not streamed; expected at most ${limits.answerLogprobs}; set "stream": true or lower max_tokens`,
    { param: 'logprobs' },
  )
}

export function checkFormat({ response_format }: Pick<SamplingFields, 'response_format'>): void {
  const format = response_format?.type ?? 'text'
  if (format === 'text') return
  throw new SkeinError(
    'unsupported_parameter',
    `response_format: type ${JSON.stringify(format.slice(0, 40))} is not implemented; expected "text"`,
    { param: 'response_format' },
  )
}

export function invalid(param: string, message: string): SkeinError {
  return new SkeinError('invalid_request', `${param}: ${message}`, { param })
}

export function present<T>(value: T | null | undefined): value is T {
  return value !== null && value !== undefined
}

/** Clients of several dialects send a list empty where they have none: [] is as good as absent. */
export function filled<T>(value: T | null | undefined): value is T {
  return present(value) && !(Array.isArray(value) && value.length === 0)
}

type NumberField = {
  [K in keyof SamplingFields]-?: number extends SamplingFields[K] ? K : never
}[keyof SamplingFields]

/** The value of a field that goes by two names; both at once must agree. */
function oneName(body: SamplingFields, name: NumberField, alias: NumberField): number | null {
  const value = body[name] ?? null
  const other = body[alias] ?? null
  if (value !== null && other !== null && value !== other) {
    throw invalid(alias, `it is another name of ${name}, and the two differ; send one`)
  }
  return value ?? other
}

function toLogitBias(
  bias: Readonly<Record<string, number>>,
  model: ServedModel,
): readonly (readonly [number, number])[] {
  return Object.entries(bias).map(([id, value]) => {
    const [token] = tokensOf([Number(id)], 'logit_bias', model)
    return [token!, value] as const
  })
}

function tokensOf(
  tokens: readonly number[] | null | undefined,
  param: string,
  model: ServedModel,
): readonly number[] {
  const vocabSize = model.client.info.model.vocabSize
  const alien = tokens?.find((token) => token >= vocabSize)
  if (alien !== undefined) {
    throw invalid(param, `token ${alien} is outside the vocabulary; expected 0 … ${vocabSize - 1}`)
  }
  return tokens ?? []
}
