/** `skein quantize`: rounds a checkpoint's large matrices once, into a file that loads without rounding again. */
import { statSync } from 'node:fs'
import { modelPath } from '../../host/checkpoints/model-path.ts'
import { quantiseFile, SCHEMES, type Scheme } from '../../host/checkpoints/quantise-file.ts'
import { choice, toggle } from '../../settings/flags.ts'
import { SETTINGS } from '../../settings/table.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, printJson, progressBar } from '../terminal/output.ts'

// Object.keys forgets that SCHEMES has these keys and no others.
const SCHEME_NAMES = Object.keys(SCHEMES) as readonly Scheme[]

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
    const { input, output, threads, quant: scheme, force: isForced } = args
    const onProgress = progressBar('quantising')
    const options = { scheme, threads, isForced, onProgress }
    const { inputBytes, vocabulary } = quantiseFile(modelPath(input), output, options)
    report(inputBytes, { output, vocabulary }, args.json)
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
