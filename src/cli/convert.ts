/** `skein convert`: a checkpoint of any readable format to `.pth` or safetensors, adapters merged on request. */
import { existsSync } from 'node:fs'
import { defineCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { modelPath, openModel } from '../load.ts'
import { convertCheckpoint } from '../model/convert.ts'
import { adapterArgs, adapterChoices, oneOf } from './args.ts'
import { printJson, progressBar } from './output.ts'
import { checkVocabulary, writeVocabulary } from './write-vocabulary.ts'

const DTYPES = ['f32', 'f16', 'bf16'] as const

export const convert = defineCommand({
  meta: { name: 'convert', description: 'Write a checkpoint as .pth or .safetensors' },
  args: {
    input: { type: 'positional', required: true, description: 'Checkpoint', valueHint: 'IN' },
    output: {
      type: 'positional',
      required: true,
      description: 'File to write: .pth or .safetensors',
      valueHint: 'OUT',
    },
    dtype: {
      type: 'string',
      description: 'f32, f16 or bf16 (default: as stored; what GGUF packs becomes f16)',
    },
    ...adapterArgs,
    force: { type: 'boolean', description: 'Replace OUT if it exists' },
    json: { type: 'boolean', description: 'Report as JSON' },
  },
  run({ args }) {
    const { input, output } = args
    if (existsSync(output) && args.force !== true) {
      throw new SkeinError('conflict', `${output} exists; --force replaces it`)
    }
    const dtype = oneOf(args, 'dtype', DTYPES)
    const checkpoint = openModel({ model: modelPath(input), adapters: adapterChoices(args) })
    try {
      if (args.force !== true) checkVocabulary(checkpoint, output)
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
