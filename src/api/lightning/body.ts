/**
 * The fields that the lightning routes share, and how they become the engine's settings. They are those of the
 * OpenAI routes (so nothing a client sends is ignored in silence) with the ranges and names of rwkv_lightning.
 */

import type { GenerateRequest, StopParams } from '../../engine/messages.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { refuseUnread } from '../openai/parameters.ts'
import {
  cacheOf,
  checkFormat,
  invalid,
  present,
  type SamplingFields,
  samplingFields,
  toSampling,
  toStop,
} from '../openai/sampling.ts'
import { BoundedInteger, Matching, Maybe } from '../schema.ts'
import type { Family } from './families.ts'

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

/**
 * Fields of this dialect that others refuse; those of the prompt are each route's own. A thought with a raw prompt, which
 * holds its own, is passed over.
 */
const READ = ['enable_think', 'noise', 'pad_zero']

/** Everything of a request but its prompt. */
export type Settings = Omit<GenerateRequest, 'id' | 'prompt'>

export function settingsOf(
  /** Without the fields that the prompt was made of. */
  body: LightningFields,
  family: Family,
  model: ServedModel,
  limits: RequestLimits,
  /** Null: the ends of a turn, as ids; else these strings, for routes that render a template. */
  defaultStops: readonly string[] | null = null,
): Settings {
  refuseUnread(body, READ)
  checkFormat(body)
  return {
    n: 1,
    maxTokens: body.max_tokens ?? family.maxTokens,
    sampling: toSampling(withinRanges(body), model, family),
    stop: stopOf(body, model, limits, defaultStops),
    logprobs: null,
    promptLogprobs: null,
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
function stopOf(
  body: LightningFields,
  model: ServedModel,
  limits: RequestLimits,
  defaults: readonly string[] | null,
): StopParams {
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
