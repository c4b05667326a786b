/** The vocabulary of a checkpoint beside what was written from it, where it is found under the new file's name. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { SkeinError } from '../../errors.ts'
import type { Checkpoint } from '../../model/formats/format.ts'
import { ownVocabularyPath } from '../../tokenizer/find-vocabulary.ts'
import { formatVocabulary } from '../../tokenizer/vocabulary.ts'

/**
 * Of a GGUF the one inside, else the file with the checkpoint's name. Null where the model has none of its own: the World
 * vocabulary is found for the new file as it was for the old one.
 */
export function writeVocabulary(checkpoint: Checkpoint, output: string): string | null {
  const content = vocabularyOf(checkpoint, output)
  if (content === null) return null
  const path = ownVocabularyPath(output)
  writeFileSync(path, content)
  return path
}

/** Before a model is written: another vocabulary in the place of its own is not replaced unasked. */
export function checkVocabulary(checkpoint: Checkpoint, output: string): void {
  const path = ownVocabularyPath(output)
  if (!existsSync(path)) return
  const content = vocabularyOf(checkpoint, output)
  if (content === null || readFileSync(path).equals(content)) return
  throw new SkeinError('conflict', `${path} exists and is another vocabulary; --force replaces it`)
}

function vocabularyOf(checkpoint: Checkpoint, output: string): Buffer | null {
  const tokens = checkpoint.vocabulary?.()
  if (tokens) return Buffer.from(formatVocabulary(tokens))
  const own = ownVocabularyPath(checkpoint.path)
  const isAnother = existsSync(own) && resolve(own) !== resolve(ownVocabularyPath(output))
  return isAnother ? readFileSync(own) : null
}
