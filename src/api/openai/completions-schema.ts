/** The body of a plain completion, and how its prompt field, in four forms, becomes prompts. */

import type { SessionUse } from '../../engine/messages.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { type Entry, listOf, numPrompts, promptList, tokensOfAll } from '../prompt-list.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { checkSession, sessionFields, sessionUse } from '../sessions/use.ts'
import { formatFields } from './asks/formats.ts'
import { fimPrompt } from './fim.ts'
import { oneMaxTokens, present, samplingFields } from './sampling.ts'

export function completionBody(limits: RequestLimits) {
  return Type.Object({
    ...samplingFields(limits),
    ...formatFields(),
    ...sessionFields(),
    prompt: promptList(limits.prompts),
    max_completion_tokens: Maybe(BoundedInteger(-1, limits.maxTokens)),
    suffix: Maybe(Type.String()),
    echo: Maybe(Type.Boolean()),
    logprobs: Maybe(BoundedInteger(0, limits.topLogprobs)),
  })
}

export type CompletionBody = Static<ReturnType<typeof completionBody>>

/** A prompt as tokens, and as the text that `echo` gives back: kept for that alone. */
export interface PromptText {
  readonly tokens: Int32Array
  readonly text: string
}

/** Refuses more sequences than the engine may be asked for at once; `prompts × n` is the cost of a call. */
export function checkFanOut(body: CompletionBody, limits: RequestLimits): void {
  const sequences = numPrompts(body.prompt) * (body.n ?? 1)
  if (sequences <= limits.sequences) return
  const message = `prompt: ${sequences} answers (prompts × n) asked for; expected at most ${limits.sequences}`
  throw new SkeinError('too_large', message, { param: 'prompt' })
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
  const message = `logprobs: ${asked} log-probabilities of the prompt (tokens × n × (1 + logprobs)) asked for; expected at most ${limits.promptLogprobs}; send shorter or fewer prompts`
  throw new SkeinError('too_large', message, { param: 'logprobs' })
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
  if (maxTokens === 0 && body.echo !== true) throw invalid('max_tokens', '0 needs "echo": true; expected at least 1')
  return maxTokens
}

/** With a suffix, each prompt is the text before a gap, and the answer fills it. */
export async function toPrompts(
  { prompt, suffix, echo }: CompletionBody,
  model: ServedModel,
  isSession: boolean,
  signal: AbortSignal,
): Promise<PromptText[]> {
  const list = withSuffix(listOf(prompt), suffix ?? '', echo === true)
  // A session continues where its last turn ended; token 0 would begin a new document.
  if (isSession && list[0]!.length === 0) return [{ tokens: new Int32Array(0), text: '' }]
  const all = await tokensOfAll(list, model, 'prompt', signal)
  const textOf = (entry: Entry, tokens: Int32Array) =>
    typeof entry === 'string' ? entry : model.tokenizer.decode(tokens)
  return list.map((entry, i) => {
    const tokens = all[i]!
    return { tokens, text: echo === true ? textOf(entry, tokens) : '' }
  })
}

function withSuffix(prompts: readonly Entry[], suffix: string, echo: boolean): readonly Entry[] {
  if (suffix === '') return prompts
  if (echo) throw invalid('echo', 'it does not go with `suffix`: the prompt is not what was sent')
  return prompts.map((prompt) => {
    if (typeof prompt === 'string') return fimPrompt(prompt, suffix)
    throw invalid('suffix', 'it needs prompts of text, not of token ids')
  })
}
