/**
 * Prompt text to tokens on the gateway's event loop without holding it up. Long text is encoded in slices with a
 * turn of the loop between them, and gives exactly the tokens of the whole.
 *
 * Why slices are exact: the World tokenizer takes the longest match from the left, so what it does at a token boundary
 * depends only on the bytes after it, and on no more of them than the longest token has. A slice therefore
 * keeps its tokens up to the first one that could have seen past its end, and the next slice begins right there.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { SkeinError } from '../errors.ts'
import type { ServedModel, TextCodec } from './models.ts'

/** About 5 ms of work at 10 MB/s. */
const SLICE_CHARS = 64 * 1024

/** The token RWKV was trained to see between documents; an empty prompt becomes it. */
export const END_OF_TEXT = 0

const longestTokens = new WeakMap<TextCodec, number>()

function longestToken(codec: TextCodec): number {
  let longest = longestTokens.get(codec)
  if (longest !== undefined) return longest
  longest = 1
  for (let id = 0; id < codec.vocabSize; id++) {
    longest = Math.max(longest, codec.bytesOf(id).length)
  }
  longestTokens.set(codec, longest)
  return longest
}

/** The tokens of a prompt; refuses one that the model's engine would not take. */
export async function encodePrompt(
  model: ServedModel,
  text: string,
  param: string,
  signal: AbortSignal,
): Promise<Int32Array> {
  const limit = model.client.info.maxPromptTokens
  const tokens = await encode(model.tokenizer, text, limit, signal)
  return checkPrompt(tokens, model, param)
}

/** Refuses token ids that the model does not have and prompts that could never run. */
export function checkPrompt(tokens: Int32Array, model: ServedModel, param: string): Int32Array {
  const limit = model.client.info.maxPromptTokens
  if (tokens.length > limit) {
    throw new SkeinError(
      'too_large',
      `${param}: the prompt has more than the ${limit} tokens this server reads; send a shorter one or raise --max-prompt-tokens`,
      { param },
    )
  }
  const vocabSize = model.client.info.model.vocabSize
  const alien = tokens.find((token) => token < 0 || token >= vocabSize)
  if (alien !== undefined) {
    throw new SkeinError(
      'invalid_request',
      `${param}: token ${alien} is outside the vocabulary; expected 0 … ${vocabSize - 1}`,
      { param },
    )
  }
  return tokens.length > 0 ? tokens : Int32Array.of(END_OF_TEXT)
}

/**
 * The lengths of the prompt's beginnings that end at, or at the last token before, these byte offsets of its text:
 * where the engine may keep a state for prompts that begin alike.
 */
export function boundariesAt(
  tokens: Int32Array,
  codec: TextCodec,
  ends: readonly number[],
): Int32Array {
  const lengths = new Set<number>()
  let bytes = 0
  let next = 0
  for (let i = 0; i < tokens.length && next < ends.length; i++) {
    bytes += codec.bytesOf(tokens[i]!).length
    for (; next < ends.length && bytes >= ends[next]!; next++) {
      lengths.add(bytes === ends[next] ? i + 1 : i)
    }
  }
  lengths.delete(0)
  return Int32Array.from(lengths)
}

/** All tokens of `text`, or the first few more than `limit` of them: enough to know that it is too long. */
async function encode(
  codec: TextCodec,
  text: string,
  limit: number,
  signal: AbortSignal,
): Promise<Int32Array> {
  if (text.length <= SLICE_CHARS) return codec.encode(text)
  const parts: Int32Array[] = []
  let count = 0
  let rest = text
  while (rest.length > SLICE_CHARS && count <= limit) {
    const slice = encodeSlice(codec, rest)
    parts.push(slice.tokens)
    count += slice.tokens.length
    rest = rest.slice(slice.chars)
    await nextTurn()
    signal.throwIfAborted()
  }
  if (count <= limit) parts.push(codec.encode(rest))
  return concatTokens(parts)
}

function encodeSlice(codec: TextCodec, text: string): { tokens: Int32Array; chars: number } {
  const slice = text.slice(0, cutBefore(text, SLICE_CHARS))
  const tokens = codec.encode(slice)
  const bytes = Buffer.from(slice)
  const horizon = bytes.length - longestToken(codec)
  // The next slice is a string, so it can only begin where a character does.
  const isInsideCharacter = (at: number) => (bytes[at]! & 0xc0) === 0x80
  let kept = tokens.length
  let keptBytes = bytes.length
  while (kept > 0 && (keptBytes > horizon || isInsideCharacter(keptBytes))) {
    kept--
    keptBytes -= codec.bytesOf(tokens[kept]!).length
  }
  if (kept === 0) throw new SkeinError('internal', 'the tokenizer made no progress on a slice')
  return { tokens: tokens.slice(0, kept), chars: bytes.toString('utf8', 0, keptBytes).length }
}

/** `at`, or one less where it would split a surrogate pair. */
function cutBefore(text: string, at: number): number {
  const code = text.charCodeAt(at - 1)
  return code >= 0xd800 && code < 0xdc00 ? at - 1 : at
}

/** Not by spreading: a prompt may have more tokens than a call may have arguments. */
export function concatTokens(parts: readonly ArrayLike<number>[]): Int32Array {
  const all = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return all
}
