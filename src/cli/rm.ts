/** `skein rm`: a pulled model from the cache. */
import { defineCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { findModel, listModels, modelsFolder, removeModel } from '../hub/model-cache.ts'
import { formatBytes, printJson } from './output.ts'

export const rm = defineCommand({
  meta: { name: 'rm', description: 'Remove a pulled model' },
  args: {
    name: {
      type: 'positional',
      required: true,
      description: 'As skein ls shows it',
      valueHint: 'NAME',
    },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const folder = modelsFolder()
    const whole = findModel(folder, args.name)
    const partial = listModels(folder).filter(
      (model) => model.isPartial && model.name === args.name,
    )
    const models = [...(whole ? [whole] : []), ...partial]
    if (models.length === 0) {
      throw new SkeinError('not_found', `no pulled model "${args.name}"; skein ls shows them`)
    }
    const bytes = models.reduce((sum, model) => sum + removeModel(folder, model), 0)
    const paths = models.map(({ path }) => path)
    if (args.json) printJson({ removed: paths, bytes })
    else process.stdout.write(`removed ${paths.join(', ')} (${formatBytes(bytes)})\n`)
  },
})
