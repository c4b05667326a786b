/**
 * What becomes of a field that a route with OpenAI's fields does not read, that is: which its schema has not.
 *  - HARMLESS: promises nothing about the text; accepted and ignored.
 *  - NOT_IMPLEMENTED: would change the text (or is a promise we do not keep). Refused by name, except at the values
 *    that mean "off", which clients send as defaults. Null always means absent.
 *  - READ_BY_SOME: the same; other routes read them.
 *  - any other unknown field is named in the reply's header `warnings`: clients carry private fields, and a slip of the hand
 *    is seen there.
 */
import { notImplemented, type SkeinError } from '../../errors.ts'
import type { UnreadFields } from '../fields.ts'

/** llama.cpp's samplers that are not here: numbers that mean nothing while they are off, and the values at which they are. */
export const OTHER_SAMPLERS = {
  harmless: [
    'dry_allowed_length',
    'dry_base',
    'dry_penalty_last_n',
    'dry_sequence_breakers',
    'dynatemp_exponent',
    'min_keep',
    'mirostat_eta',
    'mirostat_tau',
    'xtc_threshold',
  ],
  refused: {
    dry_multiplier: [0],
    dynatemp_range: [0],
    mirostat: [0],
    tfs_z: [1],
    top_n_sigma: [-1, 0],
    typ_p: [1],
    typical_p: [1],
    xtc_probability: [0],
  },
} satisfies UnreadFields

/** Accepted and ignored on every route of this dialect. */
export const HARMLESS: readonly string[] = [
  'user',
  'metadata',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'prompt_cache_retention',
  'request_id',
  'cache_salt',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'return_tokens_as_token_ids',
  ...OTHER_SAMPLERS.harmless,
  // Where its prompts are kept.
  'cache_prompt',
  'id_slot',
]

/** Answered with a warning: the reply is what it would be without them. */
const WARNED: NonNullable<UnreadFields['warned']> = {
  num_ctx: () => 'a recurrent model has no window',
  repeat_last_n: (tokens) => (Number(tokens) > 0 ? 'penalties count the whole text' : null),
  samplers: () => 'their order is fixed: penalties, temperature, top_k and top_p, min_p',
}

/** Field → the values at which it means nothing. */
export const NOT_IMPLEMENTED: Readonly<Record<string, readonly unknown[]>> = {
  // OpenAI
  audio: [],
  function_call: ['none'],
  functions: [[]],
  modalities: [['text']],
  store: [false],
  verbosity: [],
  web_search_options: [],
  // vLLM
  add_generation_prompt: [true],
  add_special_tokens: [false],
  allowed_token_ids: [[]],
  bad_words: [[]],
  chat_template: [],
  continue_final_message: [false],
  detokenize: [true],
  documents: [[]],
  early_stopping: [false],
  include_stop_str_in_output: [false],
  length_penalty: [1],
  logits_processors: [[]],
  min_tokens: [0],
  prompt_logprobs: [],
  truncate_prompt_tokens: [],
  use_beam_search: [false],
  // llama.cpp
  ...OTHER_SAMPLERS.refused,
  n_probs: [0],
  n_keep: [0],
  n_predict: [],
  repeat_penalty: [1],
  top_a: [0],
  // RWKV servers
  force_reasoning: [false],
  global_penalty: [false],
  noise: [],
  pad_zero: [false],
  presystem: [false],
  state: [],
  think: [false],
}

/** Read by some routes and refused by the others. Field → the values at which it means nothing, as above. */
export const READ_BY_SOME: Readonly<Record<string, readonly unknown[]>> = {
  assistant_name: ['Assistant'],
  best_of: [1],
  chat_template_kwargs: [{}],
  contents: [[]],
  dialogue_idx: [0],
  echo: [false],
  enable_think: [false],
  grammar: [''],
  guided_choice: [[]],
  guided_grammar: [''],
  guided_json: [''],
  guided_regex: [''],
  json_schema: [''],
  logprobs: [false],
  max_completion_tokens: [],
  messages: [[]],
  parallel_tool_calls: [true, false],
  prediction: [],
  prefix: ['', []],
  prompt: ['', []],
  reasoning_effort: [],
  stream_options: [{}, { include_usage: false }],
  structured_outputs: [{}],
  suffix: ['', []],
  system: [''],
  system_name: ['System'],
  think_type: [''],
  tool_choice: ['none', 'auto'],
  tools: [[]],
  top_logprobs: [0],
  user_name: ['User'],
}

/** Where there is something else to do, the refusal says so. */
const INSTEAD: Readonly<Record<string, string>> = {
  assistant_name: 'send it in `params`, to a chat route',
  contents: 'send it to /v1/chat/completions',
  dialogue_idx: 'use /multi_state/chat/completions',
  enable_think: 'send `messages` to /v1/chat/completions',
  max_completion_tokens: 'use `max_tokens`',
  messages: 'send them to a chat route',
  n_predict: 'use `max_tokens`',
  n_probs: 'use `logprobs` of /v1/completions',
  prefix: 'use /FIM/v1/batch-FIM',
  prompt: 'send it to /v1/completions',
  reasoning_effort: 'send `messages` to /v1/chat/completions',
  repeat_penalty: 'use `repetition_penalty`',
  system: 'send a message with the role system',
  system_name: 'send it in `params`, to a chat route',
  think: 'use `enable_think`',
  think_type: 'send `messages` to /v1/chat/completions',
  user_name: 'send it in `params`, to a chat route',
}

/** A route's own list is this one with what it reads besides, or passes over. */
export const UNREAD: UnreadFields = {
  harmless: HARMLESS,
  refused: { ...NOT_IMPLEMENTED, ...READ_BY_SOME },
  instead: INSTEAD,
  warned: WARNED,
  refusal: (param, instead = 'leave it out') =>
    Object.hasOwn(NOT_IMPLEMENTED, param)
      ? unsupported(param, instead)
      : notImplemented(param, `this route does not read it, and ignoring it would change the reply; ${instead}`),
}

export function unsupported(param: string, instead: string): SkeinError {
  const why = 'this server does not implement it, and ignoring it would change the answer'
  return notImplemented(param, `${why}; ${instead}`)
}
