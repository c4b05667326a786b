/** `skein inspect`: what a checkpoint is, from its own tensors. Loads no weights. */
import { defineCommand } from 'citty'
import { fingerprint, openCheckpoint } from '../model/checkpoint.ts'
import { describeCheckpoint } from '../model/formats/describe.ts'
import { formatBytes, formatCount, printJson, printTable } from './output.ts'

export const inspect = defineCommand({
  meta: { name: 'inspect', description: 'Say what a checkpoint is: architecture, sizes, problems' },
  args: {
    file: {
      type: 'positional',
      required: true,
      description: 'Checkpoint (.pth)',
      valueHint: 'FILE',
    },
    tensors: { type: 'boolean', description: 'Also list every tensor' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const checkpoint = openCheckpoint(args.file)
    try {
      const summary = describeCheckpoint(checkpoint)
      const file = {
        path: checkpoint.path,
        format: checkpoint.format,
        bytes: checkpoint.fileBytes,
        fingerprint: fingerprint(checkpoint),
      }
      const tensors = [...checkpoint.tensors.values()].map(({ name, dtype, shape }) => ({
        name,
        dtype,
        shape,
      }))
      if (args.json) {
        printJson({ ...file, ...summary, ...(args.tensors ? { tensors } : {}) })
        return
      }
      printTable([
        ['file', checkpoint.path],
        ['format', `${file.format}, ${formatBytes(file.bytes)}`],
        ['fingerprint', file.fingerprint],
        ...Object.entries(summary).map(([name, value]) => [name, describe(name, value)] as const),
      ])
      if (args.tensors)
        printTable([
          ['tensor', 'type', 'shape'],
          ...tensors.map(
            ({ name, dtype, shape }) => [name, dtype, `[${shape.join(', ')}]`] as const,
          ),
        ])
    } finally {
      checkpoint.close()
    }
  },
})

function describe(name: string, value: unknown): string {
  if (name === 'numParameters') return formatCount(Number(value))
  if (typeof value === 'string' || typeof value === 'number') return String(value)
  if (Array.isArray(value) && value.length === 0) return 'none'
  return JSON.stringify(value)
}
