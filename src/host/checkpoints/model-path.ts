/** Finds the checkpoint that a command names: a path, a pulled model, or the bundled demo model. */
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { SkeinError } from '../../errors.ts'
import { closest } from '../../files/closest.ts'
import { findModel, listModels, modelsFolder } from '../../hub/model-cache.ts'
import { findModelName, isReleaseName } from '../../hub/model-names.ts'
import { RELEASED } from '../../hub/released.ts'
import { existsCheckpoint } from '../../model/checkpoint.ts'

export const DEMO_NAME = 'demo'

export const DEMO_MODEL = fileURLToPath(new URL('../../../models/demo.pth', import.meta.url))

/** Without a name, the demo model's path. Throws not_found for a missing model. */
export function modelPath(model: string | undefined): string {
  if (model !== undefined && existsCheckpoint(model)) return model
  if (model !== undefined && model !== DEMO_NAME) return pulledModel(model)
  if (existsSync(DEMO_MODEL)) return DEMO_MODEL
  throw new SkeinError('not_found', 'no model given and the bundled demo model is missing')
}

/** Missing paths are left to the checkpoint reader, whose error lists what it looked for. */
function pulledModel(name: string): string {
  const found = findModel(modelsFolder(), name)
  if (found) return found.path
  const meant = closestModel(name)
  if (findModelName(name) === undefined) {
    if (meant === null && !/^\w+$/.test(name)) return name
    if (meant === null) {
      const message = `${name}: no such file or model; names are such as ${RELEASED[0]!.name}, and "skein ls" lists what was pulled`
      throw new SkeinError('not_found', message)
    }
    throw new SkeinError('not_found', `${name}: no such file or model; did you mean ${meant}?`)
  }
  const next = meant === null ? `"skein pull ${name}" fetches it` : `did you mean ${meant}?`
  throw new SkeinError('not_found', `${name} is no file here and has not been pulled; ${next}`)
}

/** Whether it names a file here or a model, if need be with a letter or two wrong. */
export function isLikeModel(name: string): boolean {
  if (existsSync(name) || findModel(modelsFolder(), name) || findModelName(name) !== undefined) return true
  return closestModel(name) !== null
}

/** The demo model, or a pulled or released one with a similar name; null if the name already looks like a release. */
export function closestModel(name: string): string | null {
  if (isReleaseName(name)) return null
  const others = [...listModels(modelsFolder()), ...RELEASED].map((model) => model.name)
  return closest(name, [DEMO_NAME, ...others])
}
