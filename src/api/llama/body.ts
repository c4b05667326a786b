/** The body of llama.cpp's native completion, and what its fields ask of the answer. */

import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { Constraint } from '../../grammar/constraint.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { OTHER_SAMPLERS } from '../openai/parameters.ts'
import { ignoredWindow, localNumberFields, present, type SamplingFields, usualNumbers } from '../openai/sampling.ts'
import { AnyObject, BoundedInteger, Maybe, OneOf, TokenId, urgencyFields } from '../schema.ts'

export function completionBody(limits: RequestLimits) {
  return Type.Object({
    model: Maybe(Type.String()),
    prompt: OneOf(
      'a string or a list of token ids and strings',
      Type.String(),
      Type.Array(OneOf('token ids and strings', TokenId, Type.String())),
    ),
    stream: Maybe(Type.Boolean()),
    ...urgencyFields(),
    n_predict: Maybe(BoundedInteger(-2, limits.maxTokens)),
    max_tokens: Maybe(BoundedInteger(-1, limits.maxTokens)),
    ...localNumberFields(),
    seed: Maybe(BoundedInteger(-(2 ** 63), 2 ** 64)),
    stop: Maybe(Type.Array(Type.String(), { maxItems: limits.stops })),
    ignore_eos: Maybe(Type.Boolean()),
    logit_bias: Maybe(
      OneOf(
        'a list of [token id, bias or false], or an object',
        Type.Array(Type.Array(Type.Unknown(), { minItems: 2, maxItems: 2 }), { maxItems: limits.logitBias }),
        AnyObject,
      ),
    ),
    n_probs: Maybe(BoundedInteger(0, limits.topLogprobs)),
    grammar: Maybe(Type.String()),
    json_schema: Maybe(AnyObject),
    return_tokens: Maybe(Type.Boolean()),
  })
}

export type CompletionBody = Static<ReturnType<typeof completionBody>>

/** Fields that bound a call's time, choose a slot or filter the reply, and the numbers of samplers that are off. */
export const UNREAD: UnreadFields = {
  harmless: [
    ...OTHER_SAMPLERS.harmless,
    'cache_prompt',
    'id_slot',
    'n_discard',
    'n_indent',
    'n_keep',
    'response_fields',
    'return_progress',
    't_max_predict_ms',
    't_max_prompt_ms',
    'timings_per_token',
  ],
  refused: {
    ...OTHER_SAMPLERS.refused,
    adaptive_target: [-1],
    lora: [[]],
    n: [1],
    n_cmpl: [1],
    penalize_nl: [false],
    post_sampling_probs: [false],
  },
  instead: { n: 'use /v1/completions', n_cmpl: 'use /v1/completions' },
  warned: {
    repeat_last_n: ignoredWindow,
    samplers: (order) =>
      JSON.stringify(order) === '[]' ? null : 'penalties, temperature, top_k and top_p, min_p come in this order',
  },
}

/** In the words of the OpenAI dialect. */
export function samplingFieldsOf(body: CompletionBody): SamplingFields {
  const { seed = null, stop = null } = body
  const bans = biasesOf(body).filter(([, bias]) => bias === false)
  const biases = biasesOf(body).filter(([, bias]) => bias !== false)
  return {
    ...usualNumbers(body),
    seed,
    stop,
    ignore_eos: body.ignore_eos ?? null,
    // Biases of `false` are bans.
    logit_bias: Object.fromEntries(biases.map(([id, bias]) => [String(id), Number(bias)])),
    banned_tokens: bans.map(([id]) => id),
  }
}

function biasesOf({ logit_bias }: CompletionBody): [id: number, bias: number | false][] {
  if (!present(logit_bias)) return []
  const pairs = Array.isArray(logit_bias) ? logit_bias : Object.entries(logit_bias)
  return pairs.map(([token, bias], i) => {
    const id = typeof token === 'string' && /^\d+$/.test(token) ? Number(token) : token
    if (!Number.isInteger(id) || (id as number) < 0)
      throw notRead(`logit_bias[${i}]`, 'name a token by its id; POST /tokenize gives it')
    if (bias !== false && (typeof bias !== 'number' || Math.abs(bias) > 100))
      throw invalid(`logit_bias[${i}]`, 'expected a number from -100 to 100, or false')
    return [id as number, bias] // an integer: checked above
  })
}

/** −1 and −2 are "until it ends"; there is a limit all the same. */
export function maxTokensOf(
  { n_predict, max_tokens }: Pick<CompletionBody, 'n_predict' | 'max_tokens'>,
  limits: RequestLimits,
): number {
  const asked = n_predict ?? max_tokens ?? -1
  return asked < 0 ? limits.defaultChatTokens : asked
}

export function constraintOf({ grammar, json_schema: schema }: CompletionBody): Constraint | null {
  const hasGrammar = present(grammar) && grammar !== ''
  const hasSchema = present(schema) && Object.keys(schema).length > 0
  if (hasGrammar && hasSchema) throw invalid('json_schema', 'it does not go with `grammar`; send one of the two')
  if (hasGrammar) return { type: 'grammar', ebnf: grammar }
  return hasSchema ? { type: 'schema', schema } : null
}
