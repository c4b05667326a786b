/** Vocabularies for tests: a small one made here, and the World vocabulary if the machine has it. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { Tokenizer } from '../../src/tokenizer/tokenizer.ts'
import { parseVocabulary } from '../../src/tokenizer/vocabulary.ts'

const BESIDE_REPOSITORY = join(import.meta.dirname, '../../../shared/data/rwkv_vocab_v20230424.txt')

/** Path of the World vocabulary, which is not part of the repository; null if absent. */
export const WORLD_VOCABULARY_PATH =
  [process.env.SKEIN_VOCAB, BESIDE_REPOSITORY].find((path) => path && existsSync(path)) ?? null

/** Ids 1 to 256: the single bytes, as in every RWKV vocabulary. */
export function byteLines(): string[] {
  return Array.from({ length: 256 }, (_, byte) => {
    return `${byte + 1} b'\\x${byte.toString(16).padStart(2, '0')}' 1`
  })
}

/** The single bytes, then the given tokens from id 257 on. Bytes are written as \x escapes. */
export function vocabularyText(tokens: readonly (string | Uint8Array)[]): string {
  const lines = tokens.map((token, index) => {
    const bytes = Buffer.from(token)
    const escapes = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`)
    return `${257 + index} b'${escapes.join('')}' ${bytes.length}`
  })
  return `${[...byteLines(), ...lines].join('\n')}\n`
}

/** The tokenizer of a vocabulary file's text. */
export function tokenizerOf(text: string): Tokenizer {
  return Tokenizer.fromTokens(parseVocabulary(text, 'vocabulary'), 'vocabulary')
}

export function smallTokenizer(tokens: readonly (string | Uint8Array)[] = []): Tokenizer {
  return tokenizerOf(vocabularyText(tokens))
}
