/** `skein inspect`: describes a checkpoint from its tensors, without loading weights. */
import { SkeinError } from '../../errors.ts'
import { modelPath } from '../../host/checkpoints/model-path.ts'
import { vocabularyPath } from '../../host/checkpoints/open-model.ts'
import { openCheckpoint } from '../../model/checkpoint.ts'
import { type CheckpointSummary, describeCheckpoint } from '../../model/formats/describe.ts'
import { fingerprint } from '../../model/formats/fingerprint.ts'
import type { Checkpoint } from '../../model/formats/format.ts'
import { hostTableBytes, modelBytes } from '../../model/run/layer-split.ts'
import { toggle } from '../../settings/flags.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, formatCount, printJson, printTable } from '../terminal/output.ts'

export const inspect = defineCommand({
  examples: [['skein inspect MODEL.pth', 'architecture, sizes, and problems that prevent serving it']],
  words: {
    file: { description: 'Checkpoint, the name of a pulled model, or demo', hint: 'FILE|NAME', isRequired: true },
  },
  flags: { tensors: toggle('Also list every tensor'), json: toggle('One JSON object') },
  run({ args }) {
    const checkpoint = openCheckpoint(modelPath(args.file))
    try {
      const summary = describeCheckpoint(checkpoint)
      const file = {
        path: checkpoint.path,
        format: checkpoint.format,
        naming: checkpoint.naming ?? 'native',
        hasVocabulary: checkpoint.vocabulary !== undefined,
        bytes: checkpoint.fileBytes,
        fingerprint: fingerprint(checkpoint),
      }
      const tensors = [...checkpoint.tensors.values()].map(({ name, dtype, packed, shape }) => ({
        name,
        dtype: packed?.type ?? dtype,
        shape,
      }))
      if (args.json) {
        const metadata = Object.fromEntries(checkpoint.metadata ?? [])
        printJson({ ...file, ...summary, metadata, ...(args.tensors ? { tensors } : {}) })
        refuseHeadSize(summary)
        return
      }
      printPlain([
        ['file', checkpoint.path],
        ['format', `${file.format}, ${file.naming} names, ${formatBytes(file.bytes)}`],
        ['vocabulary', file.hasVocabulary ? 'in the file' : vocabularyOf(checkpoint)],
        ['fingerprint', file.fingerprint],
        ...Object.entries(summary).map(([name, value]) => [label(name), describe(name, value)] as const),
        ['memory', memoryOf(checkpoint)],
        ...metadataRows(checkpoint),
      ])
      if (args.tensors)
        printPlain([
          ['tensor', 'type', 'shape'],
          ...tensors.map(({ name, dtype, shape }) => [name, dtype, `[${shape.join(', ')}]`] as const),
        ])
      refuseHeadSize(summary)
    } finally {
      checkpoint.close()
    }
  },
})

/** Throws last, after everything known has been printed: `serve` refuses such a model when it reads it. */
function refuseHeadSize({ architecture, headSize }: CheckpointSummary): void {
  const wouldRun = /^rwkv(6|7a?)$/.test(architecture)
  if (!wouldRun || headSize === null || (headSize % 16 === 0 && headSize <= 256)) return
  const message = `no device has kernels for heads of ${headSize} channels; expected a multiple of 16, 256 at most (64 on cuda, 128 at most on webgpu)`
  throw new SkeinError('unsupported_weights', message)
}

/** Names and texts come from strangers: they must not move the cursor or start a new line. */
function printPlain(rows: readonly (readonly string[])[]): void {
  printTable(rows.map((row) => row.map((cell) => cell.replace(/\p{Cc}/gu, '?'))))
}

/** The metadata of the file; long texts, such as chat templates, are cut. */
function metadataRows({ metadata = new Map() }: Checkpoint): [string, string][] {
  return [...metadata].map(([key, value]) => {
    const text = String(value).replaceAll('\n', ' ')
    return [key, text.length > 60 ? `${text.slice(0, 57)}...` : text]
  })
}

/** Memory of the weights in their stored type and, if that is below 16 bits, also in f16. */
function memoryOf(checkpoint: Checkpoint): string {
  const [own = 0, halves = 0] = [modelBytes(checkpoint), modelBytes(checkpoint, 'f16')].map(
    ({ input, layers, output }) => layers.reduce((sum, bytes) => sum + bytes, input + output),
  )
  const others = halves > own ? `, --quant f16 ${formatBytes(halves)}` : ''
  const tables = hostTableBytes(checkpoint)
  const host = tables > 0 ? `; DeepEmbed ${formatBytes(tables)} of the host's` : ''
  return `as in the file ${formatBytes(own)}${others}${host}`
}

function vocabularyOf({ path }: Checkpoint): string {
  try {
    return vocabularyPath({ model: path })
  } catch {
    return 'not in the file, none found; see skein doctor'
  }
}

/** "headSize" → "head size" */
function label(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)
}

function describe(name: string, value: unknown): string {
  if (name === 'numParameters') return formatCount(Number(value))
  if (name.endsWith('Bytes')) return formatBytes(Number(value))
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  if (value === null) return 'unknown'
  if (typeof value === 'string' || typeof value === 'number') return String(value)
  if (name === 'dtypes')
    return (value as CheckpointSummary['dtypes'])
      .map(({ dtype, tensors }) => `${dtype} (${tensors} tensor${tensors === 1 ? '' : 's'})`)
      .join(', ')
  if (Array.isArray(value)) return value.length === 0 ? 'none' : value.map(describeItem).join(', ')
  return describeItem(value)
}

function describeItem(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value)
  return Object.entries(value)
    .map(([name, each]) => `${name} ${Array.isArray(each) ? `[${each.join(', ')}]` : each}`)
    .join(', ')
}
