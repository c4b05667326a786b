/** A checkpoint's large matrices rounded once, into a file that loads without rounding again, its vocabulary beside it. */
import { existsSync } from 'node:fs'
import { extname } from 'node:path'
import { CpuQuantiser } from '../../backend/cpu/quantise.ts'
import { SkeinError } from '../../errors.ts'
import { openCheckpoint } from '../../model/checkpoint.ts'
import { loadableArchitecture } from '../../model/formats/describe.ts'
import { quantiseCheckpoint } from '../../model/quantise.ts'
import { checkVocabulary, writeVocabulary } from './write-vocabulary.ts'

export const SCHEMES = { int8: 'i8', q4: 'q4', nf4: 'nf4' } as const
export type Scheme = keyof typeof SCHEMES

interface QuantiseFileOptions {
  readonly scheme: Scheme
  readonly threads?: number | undefined
  /** What is there already is replaced. */
  readonly isForced?: boolean
  readonly onProgress: (doneBytes: number, totalBytes: number) => void
}

interface Quantised {
  readonly inputBytes: number
  /** The vocabulary that was written too; null: none. */
  readonly vocabulary: string | null
}

export function quantiseFile(
  input: string,
  output: string,
  { scheme, threads, isForced = false, onProgress }: QuantiseFileOptions,
): Quantised {
  if (extname(output).toLowerCase() !== '.safetensors')
    throw new SkeinError('invalid_request', `${output} does not end in .safetensors`)
  if (existsSync(output) && !isForced)
    throw new SkeinError('conflict', `${output} exists; --force replaces it`)
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
      // Its threads must not meet the end of the process.
      quantiser.dispose()
    }
    const vocabulary = writeVocabulary(checkpoint, output)
    return { inputBytes: checkpoint.fileBytes, vocabulary }
  } finally {
    checkpoint.close()
  }
}
