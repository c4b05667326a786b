/** Which checkpoint a command means: a path, the name of a pulled model, or the bundled demo model. */
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

/** A path; without a word the demo model's. Throws not_found for a name that is not here. */
export function modelPath(model: string | undefined): string {
  if (model !== undefined && existsCheckpoint(model)) return model
  if (model !== undefined && model !== DEMO_NAME) return pulledModel(model)
  if (existsSync(DEMO_MODEL)) return DEMO_MODEL
  throw new SkeinError('not_found', 'no model given and the bundled demo model is missing')
}

/** A path that is not there is left to the reader of checkpoints, which says what it looked for. */
function pulledModel(name: string): string {
  const found = findModel(modelsFolder(), name)
  if (found) return found.path
  const meant = closestModel(name)
  if (findModelName(name) === undefined) {
    if (meant === null) return name
    throw new SkeinError('not_found', `${name}: no such file or model; did you mean ${meant}?`)
  }
  const next = meant === null ? `"skein pull ${name}" fetches it` : `did you mean ${meant}?`
  throw new SkeinError('not_found', `${name} is no file here and has not been pulled; ${next}`)
}

/** The demo model, a pulled or a released one of nearly that name; null where the name is as those of releases are. */
export function closestModel(name: string): string | null {
  if (isReleaseName(name)) return null
  const others = [...listModels(modelsFolder()), ...RELEASED].map((model) => model.name)
  return closest(name, [DEMO_NAME, ...others])
}
