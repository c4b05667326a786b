/**
 * Quantises a checkpoint's large matrices into a file that loads without quantising again, with its vocabulary beside
 * it.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { extname, resolve } from 'node:path'
import { CpuQuantiser } from '../../backend/cpu/quantise.ts'
import { SkeinError } from '../../errors.ts'
import { openCheckpoint } from '../../model/checkpoint.ts'
import { loadableArchitecture } from '../../model/formats/describe.ts'
import type { Checkpoint } from '../../model/formats/format.ts'
import { quantiseCheckpoint } from '../../model/quantise.ts'
import { ownVocabularyPath } from '../../tokenizer/find-vocabulary.ts'
import { formatVocabulary } from '../../tokenizer/vocabulary.ts'

export const SCHEMES = { int8: 'i8', q4: 'q4', nf4: 'nf4' } as const
export type Scheme = keyof typeof SCHEMES

interface QuantiseFileOptions {
  readonly scheme: Scheme
  readonly threads?: number | undefined
  /** Replaces existing files. */
  readonly isForced?: boolean
  readonly onProgress: (doneBytes: number, totalBytes: number) => void
}

interface Quantised {
  readonly inputBytes: number
  /** Path of the vocabulary that was also written; null: none. */
  readonly vocabulary: string | null
}

export function quantiseFile(
  input: string,
  output: string,
  { scheme, threads, isForced = false, onProgress }: QuantiseFileOptions,
): Quantised {
  if (extname(output).toLowerCase() !== '.safetensors')
    throw new SkeinError('invalid_request', `${output} does not end in .safetensors`)
  if (existsSync(output) && !isForced) throw new SkeinError('conflict', `${output} exists; --force replaces it`)
  const checkpoint = openCheckpoint(input)
  try {
    loadableArchitecture(checkpoint)
    if (!isForced) checkVocabulary(checkpoint, output)
    const quantiser = new CpuQuantiser(threads === undefined ? {} : { threads })
    try {
      quantiseCheckpoint(checkpoint, output, {
        scheme: SCHEMES[scheme],
        quantise: (...rows) => quantiser.quantise(...rows),
        onProgress,
      })
    } finally {
      // Its threads must end before the process does.
      quantiser.dispose()
    }
    const vocabulary = writeVocabulary(checkpoint, output)
    return { inputBytes: checkpoint.fileBytes, vocabulary }
  } finally {
    checkpoint.close()
  }
}

/**
 * Writes the vocabulary of a GGUF, or copies the file with the checkpoint's name. Null if the model has none of its
 * own; the World vocabulary is found for the new file as for the old one.
 */
export function writeVocabulary(checkpoint: Checkpoint, output: string): string | null {
  const content = vocabularyOf(checkpoint, output)
  if (content === null) return null
  const path = ownVocabularyPath(output)
  writeFileSync(path, content)
  return path
}

/** Checked before a model is written: another existing vocabulary is not replaced unless forced. */
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
