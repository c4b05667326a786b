/**
 * `skein convert`: writes a checkpoint of any readable format as `.pth` or safetensors, with adapters merged on
 * request.
 */
import { existsSync, statSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import { modelPath } from '../../host/checkpoints/model-path.ts'
import { openModel } from '../../host/checkpoints/open-model.ts'
import {
  checkVocabulary,
  quantiseFile,
  SCHEMES,
  type Scheme,
  writeVocabulary,
} from '../../host/checkpoints/quantise-file.ts'
import { convertCheckpoint } from '../../model/convert.ts'
import { adapterChoices } from '../../settings/engine-choice.ts'
import { choice, toggle } from '../../settings/flags.ts'
import { ADAPTER_FLAGS, SETTINGS } from '../../settings/table.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, printJson, progressBar } from '../terminal/output.ts'

const DTYPES = ['f32', 'f16', 'bf16'] as const

export const convert = defineCommand({
  examples: [['skein convert MODEL.gguf MODEL.safetensors', 'its packed tensors become f16']],
  words: {
    input: { description: 'Checkpoint', hint: 'IN', isRequired: true },
    output: { description: 'File to write: .pth or .safetensors', hint: 'OUT', isRequired: true },
  },
  flags: {
    dtype: choice(DTYPES)('f32, f16 or bf16 (default: as stored; packed tensors of GGUF become f16)'),
    ...ADAPTER_FLAGS,
    force: toggle('Replace OUT if it exists'),
    json: toggle('Report as JSON'),
  },
  run({ args }) {
    const { input, output, dtype } = args
    if (existsSync(output) && !args.force) throw new SkeinError('conflict', `${output} exists; --force replaces it`)
    const checkpoint = openModel({ model: modelPath(input), adapters: adapterChoices(args) })
    try {
      if (!args.force) checkVocabulary(checkpoint, output)
      convertCheckpoint(checkpoint, output, { dtype, onProgress: progressBar('converting') })
      const vocabulary = writeVocabulary(checkpoint, output)
      const tensors = checkpoint.tensors.size
      if (args.json) printJson({ output, tensors, vocabulary })
      else process.stdout.write(`${[output, vocabulary].filter(Boolean).join('\n')}\n`)
    } finally {
      checkpoint.close()
    }
  },
})

// Object.keys loses the names of SCHEMES.
const SCHEME_NAMES = Object.keys(SCHEMES) as readonly Scheme[]

/** `skein quantize`: quantises a checkpoint's large matrices into a file that loads without quantising again. */
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
