/** The tokenizer with files and threads; codec.ts does the encoding. */
import { readFileSync, statSync } from 'node:fs'
import { SkeinError } from '../errors.ts'
import { runTask, taskPlace } from '../threads/pool.ts'
import { TokenCodec } from './codec.ts'
import type { EncodeTexts } from './encode.ts'
import { parseVocabulary, type VocabularyToken, vocabularyError } from './vocabulary.ts'

const MAX_FILE_BYTES = 64 * 1024 * 1024
const ENCODE_TEXTS = taskPlace(import.meta.url, './encode.js', 'encodeTextsTask')

export class Tokenizer extends TokenCodec {
  static fromFile(path: string): Tokenizer {
    const stats = statSync(path, { throwIfNoEntry: false })
    if (!stats?.isFile()) throw new SkeinError('not_found', `${path}: no such vocabulary file`)
    if (stats.size > MAX_FILE_BYTES) throw vocabularyError(path, `is ${stats.size} bytes, more than ${MAX_FILE_BYTES}`)
    return new Tokenizer(parseVocabulary(decodeStrictly(readFileSync(path), path), path), path)
  }

  static fromTokens(tokens: readonly VocabularyToken[], name: string): Tokenizer {
    return new Tokenizer(tokens, name)
  }

  /** Encodes texts in a thread. Beyond `most` tokens in total the result is incomplete. */
  encodeAside(texts: readonly string[], most: number): Promise<Int32Array[]> {
    const { tables } = this
    return runTask<EncodeTexts, Int32Array[]>(ENCODE_TEXTS, { tables, texts, most })
  }
}

function decodeStrictly(file: Uint8Array, name: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(file)
  } catch {
    throw vocabularyError(name, 'is not UTF-8 text')
  }
}
