/** Prompt text to tokens without holding up the event loop: what takes longer than a millisecond is done in a thread. */
import { invalid, SkeinError } from '../errors.ts'
import { turns } from '../threads/turns.ts'
import type { ServedModel, TextCodec } from './models.ts'

/** Characters in all of what is encoded on the event loop. */
const INLINE_CHARS = 16 * 1024
/** Tokens of all prompts of a request. */
const MAX_TOKENS = 2 ** 20

/** The token RWKV was trained to see between documents; an empty prompt becomes it. */
export const END_OF_TEXT = 0

/** The tokens of a prompt; refuses one that the model's engine would not take. */
export async function encodePrompt(
  model: ServedModel,
  text: string,
  param: string,
  signal: AbortSignal,
): Promise<Int32Array> {
  const [tokens] = await encodeTexts(model, [text], signal)
  return checkPrompt(tokens!, model, param)
}

export async function encodePrompts(
  model: ServedModel,
  texts: readonly string[],
  paramOf: (index: number) => string,
  signal: AbortSignal,
): Promise<Int32Array[]> {
  const all = await encodeTexts(model, texts, signal)
  return all.map((tokens, i) => checkPrompt(tokens, model, paramOf(i)))
}

/** Throws for the signal's reason, or for a request with more tokens than may wait in memory. */
export async function encodeTexts(
  { tokenizer, client }: ServedModel,
  texts: readonly string[],
  signal: AbortSignal,
): Promise<readonly Int32Array[]> {
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size <= INLINE_CHARS) return turns.do(() => texts.map((text) => tokenizer.encode(text)))
  const most = Math.max(MAX_TOKENS, client.info.maxPromptTokens)
  const all = await tokenizer.encodeAside(texts, most)
  signal.throwIfAborted()
  const numTokens = all.reduce((sum, { length }) => sum + length, 0)
  // A single prompt that is too long is refused by the engine.
  if (numTokens <= most || texts.length === 1) return all
  const message = `the prompts of this request have more than ${most} tokens; send them in several requests`
  throw new SkeinError('too_large', message)
}

/** Refuses token ids that the model does not have and prompts that could never run. */
export function checkPrompt(tokens: Int32Array, model: ServedModel, param: string): Int32Array {
  const limit = model.client.info.maxPromptTokens
  if (tokens.length > limit) {
    const message = `${param}: the prompt has more than the ${limit} tokens this server reads; send a shorter one or raise --max-prompt-tokens`
    throw new SkeinError('too_large', message, { param })
  }
  const vocabSize = model.client.info.model.vocabSize
  const alien = tokens.find((token) => token < 0 || token >= vocabSize)
  if (alien !== undefined)
    throw invalid(param, `token ${alien} is outside the vocabulary; expected 0 … ${vocabSize - 1}`)
  return tokens.length > 0 ? tokens : Int32Array.of(END_OF_TEXT)
}

/**
 * The lengths of the prompt's beginnings that end at, or at the last token before, these byte offsets of its text:
 * where the engine may keep a state for prompts that begin alike.
 */
export function boundariesAt(tokens: Int32Array, codec: TextCodec, ends: readonly number[]): Int32Array {
  const lengths = new Set<number>()
  let bytes = 0
  let next = 0
  for (let i = 0; i < tokens.length && next < ends.length; i++) {
    bytes += codec.bytesOf(tokens[i]!).length
    for (; next < ends.length && bytes >= ends[next]!; next++) lengths.add(bytes === ends[next] ? i + 1 : i)
  }
  lengths.delete(0)
  return Int32Array.from(lengths)
}
