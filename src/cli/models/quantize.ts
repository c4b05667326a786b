/** `skein quantize`: rounds a checkpoint's large matrices once, into a file that loads without rounding again. */
import { existsSync, statSync } from 'node:fs'
import { extname } from 'node:path'
import { CpuQuantiser } from '../../backend/cpu/quantise.ts'
import { SkeinError } from '../../errors.ts'
import { modelPath } from '../../host/load.ts'
import { openCheckpoint } from '../../model/checkpoint.ts'
import { loadableArchitecture } from '../../model/formats/describe.ts'
import { quantiseCheckpoint } from '../../model/quantise.ts'
import { choice, toggle } from '../../settings/flags.ts'
import { SETTINGS } from '../../settings/table.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, printJson, progressBar } from '../terminal/output.ts'
import { checkVocabulary, writeVocabulary } from './write-vocabulary.ts'

const SCHEMES = { int8: 'i8', q4: 'q4', nf4: 'nf4' } as const
// Object.keys forgets that SCHEMES has these keys and no others.
const SCHEME_NAMES = Object.keys(SCHEMES) as readonly (keyof typeof SCHEMES)[]

export const quantize = defineCommand({
  examples: [['skein quantize MODEL.pth small.safetensors --quant int8', 'half the size']],
  words: {
    input: { description: 'Checkpoint', hint: 'IN', isRequired: true },
    output: { description: 'File to write: .safetensors', hint: 'OUT', isRequired: true },
  },
  flags: {
    quant: choice(SCHEME_NAMES)('int8, q4 or nf4; see docs/numerics.md', { isRequired: true }),
    threads: SETTINGS.threads,
    force: toggle('Replace OUT if it exists'),
    json: toggle('Report as JSON'),
  },
  run({ args }) {
    const { input, output, threads } = args
    const scheme = SCHEMES[args.quant]
    if (extname(output).toLowerCase() !== '.safetensors')
      throw new SkeinError('invalid_request', `${output} does not end in .safetensors`)
    if (existsSync(output) && !args.force)
      throw new SkeinError('conflict', `${output} exists; --force replaces it`)
    const checkpoint = openCheckpoint(modelPath(input))
    try {
      loadableArchitecture(checkpoint)
      if (!args.force) checkVocabulary(checkpoint, output)
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
      report(checkpoint.fileBytes, { output, vocabulary }, args.json)
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
