/** The vocabulary of a checkpoint beside what was written from it, where it is found under the new file's name. */
import { copyFileSync, existsSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { Checkpoint } from '../model/checkpoint.ts'
import { ownVocabularyPath } from '../tokenizer/find-vocabulary.ts'
import { formatVocabulary } from '../tokenizer/vocabulary.ts'

/**
 * Of a GGUF the one inside, else the file with the checkpoint's name. Null where the model has none of its own: the World
 * vocabulary is found for the new file as it was for the old one.
 */
export function writeVocabulary(checkpoint: Checkpoint, output: string): string | null {
  const path = ownVocabularyPath(output)
  const tokens = checkpoint.vocabulary?.()
  const own = ownVocabularyPath(checkpoint.path)
  if (tokens) writeFileSync(path, formatVocabulary(tokens))
  else if (existsSync(own) && resolve(own) !== resolve(path)) copyFileSync(own, path)
  else return null
  return path
}
