/**
 * The World vocabulary as a GGUF file carries it: one text per id, in which bytes are escaped as Python's repr does.
 * Id 0 and other control tokens have no bytes; the ids that pad the vocabulary to the model's size are no tokens.
 */

import { type ByteSource, corrupt, quote } from '../byte-source.ts'
import type { CheckpointToken } from '../format.ts'
import type { Gguf } from './gguf.ts'

const TOKENIZER_MODEL = 'rwkv'
/** Values of tokenizer.ggml.token_type. */
const CONTROL = 3
const UNUSED = 5

/** Undefined where the file has none, or one that is not RWKV's. */
export function ggufVocabulary(
  source: Pick<ByteSource, 'path'>,
  { values, texts, numbers }: Gguf,
): (() => readonly CheckpointToken[]) | undefined {
  const tokens = texts.get('tokenizer.ggml.tokens')
  if (values.get('tokenizer.ggml.model') !== TOKENIZER_MODEL || !tokens) return undefined
  const types = numbers.get('tokenizer.ggml.token_type') ?? []
  return () => {
    const found: CheckpointToken[] = []
    for (const [id, text] of tokens.entries()) {
      const isToken = id > 0 && types[id] !== CONTROL && types[id] !== UNUSED
      if (!isToken || text === `[PAD${id}]`) continue
      found.push({ id, bytes: tokenBytes(source, id, text) })
    }
    return found
  }
}

const SIMPLE_ESCAPES: Readonly<Record<string, number>> = { t: 9, n: 10, r: 13 }
const BACKSLASH = 0x5c

/** ASCII with \t \n \r \xNN; a backslash before any other character stands for that character. */
function tokenBytes(source: Pick<ByteSource, 'path'>, id: number, text: string): Uint8Array {
  const bytes: number[] = []
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code !== BACKSLASH) {
      if (code > 0x7f) throw unescapable(source, id, text)
      bytes.push(code)
      continue
    }
    at++
    const escaped = text[at]
    if (escaped === undefined) throw unescapable(source, id, text)
    if (escaped !== 'x') {
      bytes.push(SIMPLE_ESCAPES[escaped] ?? escaped.charCodeAt(0))
      continue
    }
    const digits = text.slice(at + 1, at + 3)
    if (!/^[0-9a-fA-F]{2}$/.test(digits)) throw unescapable(source, id, text)
    bytes.push(Number.parseInt(digits, 16))
    at += 2
  }
  if (bytes.length === 0) throw unescapable(source, id, text)
  return Uint8Array.from(bytes)
}

function unescapable(source: Pick<ByteSource, 'path'>, id: number, text: string): Error {
  return corrupt(source, `its token ${id}, "${quote(text)}", is not escaped as RWKV tokens are`)
}
