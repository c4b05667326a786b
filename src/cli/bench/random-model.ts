/** Checkpoints of random weights for benches: written once, into the cache folder. */
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { RANDOM_MODEL_SIZES, type RandomModelSize, writeRandomModel } from '../../bench/random-model.ts'
import { makeFolder } from '../../files/make-folder.ts'
import { modelPath } from '../../host/checkpoints/model-path.ts'
import { choice } from '../../settings/flags.ts'

export const SIZE_FLAG = choice(RANDOM_MODEL_SIZES)(
  `Random weights of a released size instead of FILE, kept in the cache folder: ${RANDOM_MODEL_SIZES.join(', ')}`,
)

/** Resolves a file or a model's name, or a size of random weights. */
export function modelOrSize(given: string): string {
  const size = RANDOM_MODEL_SIZES.find((one) => one === given)
  return size === undefined ? modelPath(given) : randomModel(size)
}

export function randomModel(size: RandomModelSize): string {
  const folder = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'skein', 'random')
  makeFolder(folder)
  const path = join(folder, `rwkv7-${size}.pth`)
  // The file is written under another name and renamed when complete, so an existing file is whole.
  return existsSync(path) ? path : writeRandomModel(path, size)
}
