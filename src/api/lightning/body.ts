/**
 * The fields that the lightning routes share, their defaults, and how they become the engine's settings. They are those of
 * the OpenAI routes (so nothing a client sends is ignored in silence) with the ranges and names of rwkv_lightning.
 */
import { type GenerateRequest, PLAIN_REQUEST, type StopParams } from '../../engine/messages.ts'
import { invalid, type SkeinError } from '../../errors.ts'
import { type Static, type TSchema, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'
import { UNREAD as OPENAI_UNREAD } from '../openai/parameters.ts'
import {
  cacheOf,
  checkFormat,
  present,
  type SamplingDefaults,
  type SamplingFields,
  samplingFields,
  toSampling,
  toStop,
} from '../openai/sampling.ts'
import { type Call, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Matching, Maybe } from '../schema.ts'

/** Names a call for /v1/server/stop, pause and resume. */
export const RequestName = Matching('^[A-Za-z0-9._-]{1,128}$', '1 to 128 of A-Za-z0-9._-')

export function lightningFields(limits: RequestLimits) {
  const { n: _n, best_of: _bestOf, stream_options: _options, ...shared } = samplingFields(limits)
  return {
    ...shared,
    n: Maybe(BoundedInteger(1, 1)),
    max_tokens: Maybe(BoundedInteger(1, limits.maxTokens)),
    // Values outside mean "off" here, as in the original.
    top_k: Maybe(BoundedInteger(-(2 ** 31), 2 ** 31 - 1)),
    top_p: Maybe(Type.Number()),
    chunk_size: Maybe(BoundedInteger(1, 65_536)),
    noise: Maybe(Type.Number({ minimum: 0, maximum: 1e6, description: 'a number from 0 to 1000000' })),
    pad_zero: Maybe(Type.Boolean()),
    same_seed: Maybe(Type.Boolean()),
    password: Maybe(Type.String()),
    request_id: Maybe(RequestName),
  }
}

export type LightningFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof lightningFields>>>>

/** One raw prompt per row. OpenAI's limit on prompts does not apply: these routes are for wide batches. */
export function Contents(limits: RequestLimits) {
  return Type.Array(Type.String(), {
    maxItems: limits.sequences,
    description: `a list of at most ${limits.sequences} strings`,
  })
}

/** A thought with a raw prompt, which holds its own, is passed over. */
const UNREAD = { ...OPENAI_UNREAD, harmless: [...OPENAI_UNREAD.harmless, 'enable_think'] }

/** A route for answers. */
export function answering<T extends TSchema>(
  path: string,
  summary: string,
  body: T,
  handle: (call: Call<Static<T>>) => Promise<Reply>,
): Route {
  return passwordRoute(post(path, summary, body, handle, UNREAD))
}

export function passwordRoute(route: Route): Route {
  return { ...route, access: 'password' }
}

export type Settings = Omit<GenerateRequest, 'id' | 'prompt'>

export function settingsOf(
  body: LightningFields,
  family: Family,
  model: ServedModel,
  limits: RequestLimits,
  /** Null: the ends of a turn, as ids; else these strings, for routes that render a template. */
  defaultStops: readonly string[] | null = null,
): Settings {
  checkFormat(body)
  return {
    ...PLAIN_REQUEST,
    maxTokens: body.max_tokens ?? family.maxTokens,
    sampling: toSampling(withinRanges(body), model, family),
    stop: stopOf(body, model, limits, defaultStops),
    cache: cacheOf(body),
  }
}

function withinRanges(body: LightningFields): SamplingFields {
  const { n: _n, ...rest } = body
  return {
    ...rest,
    top_k: present(body.top_k) ? Math.max(0, body.top_k) : null,
    top_p: present(body.top_p) && (body.top_p < 0 || body.top_p > 1) ? 1 : (body.top_p ?? null),
  }
}

/** A request that names no stop at all ends at the first blank line or where the next turn would begin. */
function stopOf(body: LightningFields, model: ServedModel, limits: RequestLimits, defaults: readonly string[] | null) {
  const { n: _n, ...fields } = body
  const asked = toStop(fields, [], model, limits)
  if (present(body.stop) || present(body.stop_tokens) || present(body.stop_token_ids)) return asked
  const ends = defaults === null ? turnEnds(model) : { strings: defaults, tokens: [] }
  return { ...asked, strings: ends.strings, tokens: ends.tokens }
}

/** [261, 24281] in the World vocabulary: a blank line, and "User". Text, where a vocabulary has no such token. */
function turnEnds({ tokenizer }: ServedModel): Pick<StopParams, 'strings' | 'tokens'> {
  const strings: string[] = []
  const tokens: number[] = []
  for (const [text, otherwise] of [
    ['\n\n', '\n\n'],
    ['User', '\nUser:'],
  ] as const) {
    const ids = tokenizer.encode(text)
    if (ids.length === 1) tokens.push(ids[0]!)
    else strings.push(otherwise)
  }
  return { strings, tokens }
}

/** Prompts of a list, or a refusal in the words of the original. */
export function contentsOf({ contents }: { contents?: readonly string[] | null }): readonly string[] {
  if (!present(contents) || contents.length === 0) throw invalid('contents', 'Empty prompts list')
  return contents
}

interface Named {
  readonly model?: string | null | undefined
}

/** Clients of these routes get back the name they sent, or the one they always did. */
export function modelNameOf({ model }: Named): string {
  return model || 'rwkv7'
}

/** Without a name: the only model; of several, the one called `rwkv7`. */
export function modelOf({ models, body }: { models: ModelRegistry; body: Named }): ServedModel {
  return models.get(modelNameOf(body))
}

/** The error of the lightning routes: one string. Its refusal of a key has one wording, which clients look for. */
export function renderStringError(error: SkeinError): object {
  const isRefused = error.code === 'unauthorized'
  return { error: isRefused ? 'Unauthorized: invalid or missing password' : error.message }
}

export interface Family extends SamplingDefaults {
  readonly maxTokens: number
  /** Tokens of a row that a stream gathers before it sends them. */
  readonly chunkSize: number
}

/** /v1, /v2, /state and /multi_state: raw prompts (rwkv_lightning of April 2026). */
export const CONTENTS: Family = {
  maxTokens: 8192,
  chunkSize: 4,
  topK: 50,
  topP: 0.6,
  presencePenalty: 2,
  frequencyPenalty: 0.2,
  penaltyDecay: 0.996,
}

/** /v3 and FIM (January 2026): greedy unless asked otherwise, and short. */
export const SHORT: Family = {
  maxTokens: 50,
  chunkSize: 4,
  topK: 1,
  topP: 0.3,
  presencePenalty: 0.5,
  frequencyPenalty: 0.5,
  penaltyDecay: 0.996,
}

/** /big_batch: the model's own distribution at a temperature, nothing cut, no penalties. */
export const BIG_BATCH: Family = { maxTokens: 8192, chunkSize: 4, penaltyDecay: 1 }

/** /v1/batch/completions of rwkv_lightning_cuda. */
export const CUDA_BATCH: Family = {
  maxTokens: 8192,
  chunkSize: 8,
  topK: 20,
  topP: 0.3,
  presencePenalty: 2,
  frequencyPenalty: 0.2,
  penaltyDecay: 0.996,
}

/** /openai/v1/chat/completions. */
export const OPENAI_ROUTE: Family = {
  maxTokens: 4096,
  chunkSize: 1,
  topK: 20,
  topP: 0.6,
  presencePenalty: 1,
  frequencyPenalty: 0.1,
  penaltyDecay: 0.996,
}
