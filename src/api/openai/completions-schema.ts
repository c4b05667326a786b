/** The body of a plain completion, and how its prompt field, in four forms, becomes prompts. */
import Type, { type Static } from 'typebox'
import type { SessionUse } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { checkPrompt, encodePrompts } from '../encode.ts'
import { fimPrompt } from '../fim/prompt.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { BoundedInteger, Maybe, OneOf, TokenId } from '../schema.ts'
import { checkSession, sessionFields, sessionUse } from '../sessions/use.ts'
import { formatFields } from './asks/formats.ts'
import { invalid, oneMaxTokens, present, samplingFields } from './sampling.ts'

export function completionBody(limits: RequestLimits) {
  return Type.Object({
    ...samplingFields(limits),
    ...formatFields(),
    ...sessionFields(),
    prompt: OneOf(
      `a string, a list of token ids, or a list of at most ${limits.prompts} of either`,
      Type.String(),
      Type.Array(TokenId),
      Type.Array(Type.String(), { minItems: 1, maxItems: limits.prompts }),
      Type.Array(Type.Array(TokenId), { minItems: 1, maxItems: limits.prompts }),
    ),
    max_completion_tokens: Maybe(BoundedInteger(-1, limits.maxTokens)),
    suffix: Maybe(Type.String()),
    echo: Maybe(Type.Boolean()),
    logprobs: Maybe(BoundedInteger(0, limits.topLogprobs)),
  })
}

export type CompletionBody = Static<ReturnType<typeof completionBody>>
type Prompt = CompletionBody['prompt']

/** A prompt as tokens, and as the text that `echo` gives back: kept for that alone. */
export interface PromptText {
  readonly tokens: Int32Array
  readonly text: string
}

/** Refuses more sequences than the engine may be asked for at once; `prompts × n` is the cost of a call. */
export function checkFanOut(body: CompletionBody, limits: RequestLimits): void {
  const sequences = numPrompts(body.prompt) * (body.n ?? 1)
  if (sequences <= limits.sequences) return
  throw new SkeinError(
    'too_large',
    `prompt: ${sequences} answers (prompts × n) asked for; expected at most ${limits.sequences}`,
    { param: 'prompt' },
  )
}

/** Refuses echoes with more log-probabilities than one reply may have; each answer repeats those of its prompt. */
export function checkEcho(
  body: CompletionBody,
  { mixture }: ServedModel,
  prompts: readonly PromptText[],
  limits: RequestLimits,
): void {
  if (body.echo !== true || !present(body.logprobs)) return
  if (mixture !== undefined)
    throw invalid('echo', 'a mixture has no log-probabilities of its prompt; leave logprobs out')
  const tokens = prompts.reduce((sum, prompt) => sum + prompt.tokens.length, 0)
  const asked = tokens * (body.n ?? 1) * (1 + body.logprobs)
  if (asked <= limits.promptLogprobs) return
  throw new SkeinError(
    'too_large',
    `logprobs: ${asked} log-probabilities of the prompt (tokens × n × (1 + logprobs)) asked for; expected at most ${limits.promptLogprobs}; send shorter or fewer prompts`,
    { param: 'logprobs' },
  )
}

/** In a session the prompt is appended as it is: this route knows no turns. */
export function sessionOf(body: CompletionBody): SessionUse | null {
  const session = sessionUse(body)
  if (session === null) return null
  checkSession(body)
  if (numPrompts(body.prompt) > 1) throw invalid('prompt', 'a session continues with one prompt')
  if (body.echo === true) throw invalid('echo', 'it does not go with a session')
  return session
}

export function completionMaxTokens(body: CompletionBody, limits: RequestLimits): number {
  const maxTokens = oneMaxTokens(body, limits) ?? limits.defaultCompletionTokens
  if (maxTokens === 0 && body.echo !== true) {
    throw invalid('max_tokens', '0 needs "echo": true; expected at least 1')
  }
  return maxTokens
}

/** With a suffix, prompts become the text before a gap, and the answer fills it. */
export async function toPrompts(
  { prompt, suffix, echo }: CompletionBody,
  model: ServedModel,
  isSession: boolean,
  signal: AbortSignal,
): Promise<PromptText[]> {
  const list = withSuffix(listOf(prompt), suffix ?? '', echo === true)
  const paramOf = (i: number) => (list.length === 1 ? 'prompt' : `prompt[${i}]`)
  // It goes on where the turn before ended; token 0 would begin a document there.
  if (isSession && list[0]!.length === 0) return [{ tokens: new Int32Array(0), text: '' }]
  const isTexts = list.every((entry) => typeof entry === 'string')
  if (isTexts) {
    const tokens = await encodePrompts(model, list, paramOf, signal)
    return list.map((text, i) => ({ tokens: tokens[i]!, text: echo === true ? text : '' }))
  }
  const ids = list as readonly (readonly number[])[] // a list is of one kind: see the schema
  return ids.map((entry, i) => {
    const tokens = checkPrompt(new Int32Array(entry), model, paramOf(i))
    return { tokens, text: echo === true ? model.tokenizer.decode(tokens) : '' }
  })
}

function withSuffix(
  prompts: readonly (string | readonly number[])[],
  suffix: string,
  echo: boolean,
): readonly (string | readonly number[])[] {
  if (suffix === '') return prompts
  if (echo) throw invalid('echo', 'it does not go with `suffix`: the prompt is not what was sent')
  return prompts.map((prompt) => {
    if (typeof prompt === 'string') return fimPrompt(prompt, suffix)
    throw invalid('suffix', 'it needs prompts of text, not of token ids')
  })
}

export function numPrompts(prompt: Prompt): number {
  return typeof prompt === 'string' || typeof prompt[0] === 'number' ? 1 : prompt.length
}

function listOf(prompt: Prompt): readonly (string | readonly number[])[] {
  if (typeof prompt === 'string') return [prompt]
  // The schema allows only lists of one kind: the first entry tells which. An empty list is a prompt of no tokens.
  const isTokens = prompt.length === 0 || typeof prompt[0] === 'number'
  if (isTokens) return [prompt as number[]]
  return prompt as string[] | number[][]
}
