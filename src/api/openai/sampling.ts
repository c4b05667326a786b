/**
 * The sampling and stopping fields that chat and plain completions share: their schema, and how they become the
 * engine's numbers. The numbers are those of sampling.ts.
 */

import type { SamplingParams, StopParams } from '../../engine/messages.ts'
import { invalid, notImplemented, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import {
  SAMPLING_ROWS,
  type SamplingField,
  type SamplingName,
  type SamplingNumbers,
  type SamplingParameter,
  type SamplingUsualField,
  samplingNumbers,
} from '../../sampling.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { Bounded, BoundedInteger, Maybe, OneOf, TokenId, urgencyFields } from '../schema.ts'

/** The decay of RWKV's own tools; only requests that use their field names get it unasked. */
const RWKV_DECAY = 0.996

/**
 * What a request that says nothing gets. Every family of routes has its own; a number it leaves out has no effect. The decay of
 * the penalties, left out, is 0.996 once the request uses RWKV's names of them.
 */
export type SamplingDefaults = Partial<SamplingNumbers>

type NumberFields = { readonly [F in SamplingField]: ReturnType<typeof NumberField> }

function NumberField({ min, max, int }: SamplingParameter) {
  return Maybe(int === undefined ? Bounded(min, max) : BoundedInteger(min, max))
}

function numberFields(): NumberFields {
  const fields = SAMPLING_ROWS.flatMap(([, row]) => row.fields.map((field) => [field, NumberField(row)]))
  // SamplingField is the union of what the rows list.
  return Object.fromEntries(fields) as NumberFields
}

/** Tokens that penalties count: 0 turns them off, every other number means the whole text here. */
const RepeatLastN = Maybe(BoundedInteger(-1, 2 ** 31 - 1))

/** The usual fields of the numbers, by the names that llama.cpp and Ollama have for them. */
export function localNumberFields() {
  const fields = SAMPLING_ROWS.flatMap(([, row]) => usualOf(row).map((field) => [localName(field), NumberField(row)]))
  // A name for each usual field.
  const numbers = Object.fromEntries(fields) as {
    readonly [F in SamplingUsualField as F extends 'repetition_penalty' ? 'repeat_penalty' : F]: ReturnType<
      typeof NumberField
    >
  }
  return { ...numbers, repeat_last_n: RepeatLastN }
}

/** The numbers of such a body, by their usual names. */
export function usualNumbers(body: object): Partial<SamplingFields> {
  const given = body as Readonly<Record<string, unknown>>
  const fields = [...SAMPLING_ROWS.flatMap(([, row]) => usualOf(row)), 'repeat_last_n']
  return Object.fromEntries(fields.map((field) => [field, given[localName(field)] ?? null]))
}

function localName(field: string): string {
  return field === 'repetition_penalty' ? 'repeat_penalty' : field
}

/** For bodies with such fields: their `repeat_last_n` matters beside a penalty. */
export function ignoredWindow(window: unknown, given: object): string | null {
  const { repetition_penalty, presence_penalty, frequency_penalty } = usualNumbers(given)
  const isPenalised = (repetition_penalty ?? 1) !== 1 || (presence_penalty ?? 0) !== 0 || (frequency_penalty ?? 0) !== 0
  return Number(window) > 0 && isPenalised ? 'penalties count the whole text' : null
}

function usualOf({ fields }: SamplingParameter): readonly SamplingUsualField[] {
  // The first of a row's fields is its usual one.
  return fields.slice(0, 1) as SamplingUsualField[]
}

export function samplingFields(limits: RequestLimits) {
  return {
    model: Maybe(Type.String()),
    stream: Maybe(Type.Boolean()),
    stream_options: Maybe(Type.Object({ include_usage: Maybe(Type.Boolean()) })),
    n: Maybe(BoundedInteger(1, limits.n)),
    best_of: Maybe(BoundedInteger(1, limits.n)),
    max_tokens: Maybe(BoundedInteger(-1, limits.maxTokens)),
    ...numberFields(),
    repeat_last_n: RepeatLastN,
    seed: Maybe(BoundedInteger(-(2 ** 63), 2 ** 64)),
    stop: Maybe(Stop(limits)),
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
    ...urgencyFields(),
    cache: Maybe(Type.Unsafe<'use' | 'no-store'>({ type: 'string', enum: ['use', 'no-store', null] })),
  }
}

export function Stop({ stops }: RequestLimits) {
  const list = Type.Array(Type.String(), { maxItems: stops })
  return OneOf(`a string or a list of at most ${stops} strings`, Type.String(), list)
}

/** RWKV servers' one list for both: ids and strings, mixed as one likes. */
function StopTokens(limits: RequestLimits) {
  const entry = OneOf('token ids and strings', TokenId, Type.String())
  return Type.Array(entry, { maxItems: 2 * limits.stops })
}

export type SamplingFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof samplingFields>>>>

const PENALTIES: readonly SamplingName[] = ['presencePenalty', 'frequencyPenalty', 'repetitionPenalty']

export function toSampling(body: SamplingFields, model: ServedModel, defaults: SamplingDefaults = {}): SamplingParams {
  const usesRwkvNames = present(body.alpha_presence) || present(body.alpha_frequency)
  const named: SamplingDefaults = { ...(usesRwkvNames && { penaltyDecay: RWKV_DECAY }), ...defaults }
  const own: Readonly<Record<string, number | null>> = model.mixture?.defaults ?? {}
  const numbers = samplingNumbers((name, { fields, off }) => {
    const given = oneOfNames(body, fields) ?? own[name] ?? named[name] ?? off
    return body.repeat_last_n === 0 && PENALTIES.includes(name) ? off : given
  })
  return {
    ...numbers,
    topK: Math.max(0, numbers.topK),
    seed: present(body.seed) ? BigInt.asUintN(64, BigInt(body.seed)) : null,
    logitBias: Object.entries(body.logit_bias ?? {}).map(([id, value]) => {
      const [token] = tokensOf([Number(id)], 'logit_bias', model)
      return [token!, value] as const
    }),
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
    if (LONE_SURROGATE.test(stop)) throw invalid(param, 'a stop string has half of a surrogate pair')
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

/** -1 is how clients of local servers say "until it ends"; there is a limit all the same. */
export function TokenLimit({ maxTokens }: RequestLimits) {
  return OneOf(`-1 or 1 to ${maxTokens}`, BoundedInteger(-1, -1), BoundedInteger(1, maxTokens))
}

/** `max_completion_tokens` is the newer name of `max_tokens`; null: neither. */
export function oneMaxTokens(
  {
    max_tokens: old,
    max_completion_tokens: current,
  }: { readonly max_tokens?: number | null; readonly max_completion_tokens?: number | null },
  limits: RequestLimits,
): number | null {
  if (present(old) && present(current) && old !== current)
    throw invalid('max_completion_tokens', 'it differs from max_tokens; send one of the two')
  const asked = current ?? old ?? null
  return asked === -1 ? limits.defaultChatTokens : asked
}

/** Whether kept states may be used for this request, and left behind by it. */
export function cacheOf(body: SamplingFields): 'use' | 'no-store' {
  return body.cache ?? 'use'
}

/** Checks that belong to no single number: what may be combined, and what n and best_of may be. */
export function checkCombinations(body: SamplingFields, readsFormat = false): void {
  const n = body.n ?? 1
  const best = body.best_of ?? 1
  if (best !== 1 && best !== n)
    throw notImplemented('best_of', `got ${best}; this server returns every answer it draws, so expected n (${n})`)
  if (present(body.stream_options) && body.stream !== true) throw invalid('stream_options', 'it needs "stream": true')
  if (!readsFormat) checkFormat(body)
}

/** Refuses replies that would be kept whole and could have more log-probabilities than there may be memory for. */
export function checkLogprobs(
  { stream }: SamplingFields,
  {
    numAnswers,
    maxTokens,
    logprobs,
  }: { readonly numAnswers: number; readonly maxTokens: number; readonly logprobs: number | null },
  limits: RequestLimits,
): void {
  if (stream === true || logprobs === null) return
  const asked = numAnswers * maxTokens * (1 + logprobs)
  if (asked <= limits.answerLogprobs) return
  const message = `logprobs: up to ${asked} log-probabilities (answers × max_tokens × (1 + alternatives)) asked for in a reply that is not streamed; expected at most ${limits.answerLogprobs}; set "stream": true or lower max_tokens`
  throw new SkeinError('too_large', message, { param: 'logprobs' })
}

export function checkFormat({ response_format }: Pick<SamplingFields, 'response_format'>): void {
  const format = response_format?.type ?? 'text'
  if (format === 'text') return
  const type = JSON.stringify(format.slice(0, 40))
  throw notImplemented('response_format', `type ${type} is not implemented; expected "text"`)
}

export function present<T>(value: T | null | undefined): value is T {
  return value !== null && value !== undefined
}

/** Clients of several dialects send a list empty where they have none: [] is as good as absent. */
export function filled<T>(value: T | null | undefined): value is T {
  return present(value) && !(Array.isArray(value) && value.length === 0)
}

/** The value of a field that may go by several names; two at once must agree. */
function oneOfNames(body: SamplingFields, names: readonly string[]): number | null {
  // Each is a field with a number, see numberFields().
  const fields = body as Readonly<Record<string, number | null | undefined>>
  const given = names.filter((name) => present(fields[name]))
  const [first] = given
  const other = given.find((name) => fields[name] !== fields[first!])
  if (other !== undefined) throw invalid(other, `it is another name of ${first}, and the two differ; send one`)
  return first === undefined ? null : fields[first]!
}

function tokensOf(tokens: readonly number[] | null | undefined, param: string, model: ServedModel): readonly number[] {
  const vocabSize = model.client.info.model.vocabSize
  const alien = tokens?.find((token) => token >= vocabSize)
  if (alien !== undefined)
    throw invalid(param, `token ${alien} is outside the vocabulary; expected 0 … ${vocabSize - 1}`)
  return tokens ?? []
}
