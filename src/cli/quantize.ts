/** `skein quantize`: rounds a checkpoint's large matrices once, into a file that loads without rounding again. */
import { existsSync, statSync } from 'node:fs'
import { extname } from 'node:path'
import { defineCommand } from 'citty'
import { CpuQuantiser } from '../backend/cpu/quantise.ts'
import { SkeinError } from '../errors.ts'
import { modelPath } from '../load.ts'
import { openCheckpoint } from '../model/checkpoint.ts'
import { loadableArchitecture } from '../model/formats/describe.ts'
import { quantiseCheckpoint } from '../model/quantise.ts'
import { integer, oneOf } from './args.ts'
import { formatBytes, printJson, progressBar } from './output.ts'
import { checkVocabulary, writeVocabulary } from './write-vocabulary.ts'

const SCHEMES = { int8: 'i8', q4: 'q4', nf4: 'nf4' } as const
// Object.keys forgets that SCHEMES has these keys and no others.
const SCHEME_NAMES = Object.keys(SCHEMES) as readonly (keyof typeof SCHEMES)[]

export const quantize = defineCommand({
  meta: { name: 'quantize', description: 'Write a checkpoint with its matrices in 8 or 4 bits' },
  args: {
    input: { type: 'positional', required: true, description: 'Checkpoint', valueHint: 'IN' },
    output: {
      type: 'positional',
      required: true,
      description: 'File to write: .safetensors',
      valueHint: 'OUT',
    },
    quant: { type: 'string', required: true, description: 'int8, q4 or nf4; see docs/numerics.md' },
    threads: { type: 'string', description: 'CPU threads (default: all cores)' },
    force: { type: 'boolean', description: 'Replace OUT if it exists' },
    json: { type: 'boolean', description: 'Report as JSON' },
  },
  run({ args }) {
    const { input, output } = args
    const scheme = SCHEMES[oneOf(args, 'quant', SCHEME_NAMES)!]
    if (extname(output).toLowerCase() !== '.safetensors')
      throw new SkeinError('invalid_request', `${output} does not end in .safetensors`)
    if (existsSync(output) && args.force !== true)
      throw new SkeinError('conflict', `${output} exists; --force replaces it`)
    const threads = integer(args, 'threads', 1, 1024)
    const checkpoint = openCheckpoint(modelPath(input))
    try {
      loadableArchitecture(checkpoint)
      if (args.force !== true) checkVocabulary(checkpoint, output)
      const quantiser = new CpuQuantiser(threads === undefined ? {} : { threads })
      const onProgress = progressBar('quantising')
      try {
        quantiseCheckpoint(checkpoint, output, {
          scheme,
          quantise: (...rows) => quantiser.quantise(...rows),
          onProgress,
        })
      } finally {
        // Its threads must not meet the end of the process.
        quantiser.dispose()
      }
      const vocabulary = writeVocabulary(checkpoint, output)
      report(checkpoint.fileBytes, { output, vocabulary }, args.json === true)
    } finally {
      checkpoint.close()
    }
  },
})

interface Written {
  readonly output: string
  readonly vocabulary: string | null
}

function report(inputBytes: number, { output, vocabulary }: Written, asJson: boolean): void {
  const bytes = statSync(output).size
  const lines = [`${output}: ${formatBytes(bytes)} of ${formatBytes(inputBytes)}`, vocabulary]
  if (asJson) printJson({ output, bytes, inputBytes, vocabulary })
  else process.stdout.write(`${lines.filter(Boolean).join('\n')}\n`)
}
