/** `skein ls`: the models that have been pulled. */
import { defineCommand } from 'citty'
import { listModels, modelsFolder } from '../hub/model-cache.ts'
import { formatBytes, printJson, printTable } from './output.ts'

export const ls = defineCommand({
  meta: { name: 'ls', description: 'List the models that have been pulled' },
  args: { json: { type: 'boolean', description: 'One JSON object' } },
  run({ args }) {
    const folder = modelsFolder()
    const models = listModels(folder)
    if (args.json) {
      printJson({ folder, models })
      return
    }
    if (models.length === 0) {
      process.stdout.write(`no models in ${folder}; skein pull rwkv7-g1-0.4b fetches one\n`)
      return
    }
    printTable([
      ['name', 'size', 'repository'],
      ...models.map(({ name, bytes, repository, isPartial }) => [
        name,
        formatBytes(bytes),
        isPartial ? `${repository} (incomplete: pull it again)` : repository,
      ]),
    ])
  },
})
