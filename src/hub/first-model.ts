/** Which model to offer somebody who has none: the largest of the small G1 models that fits, in its newest release. */
import { type Hub, licenceOf, listFiles } from './hub.ts'
import { newestNamed } from './model-names.ts'
import { FIRST_NAMES, isSmallFor } from './released.ts'

export interface FirstModel {
  /** What `pull` and `serve` take. */
  readonly name: string
  readonly file: string
  readonly bytes: number
  /** As the hub names it: "apache-2.0"; null where it does not say. */
  readonly licence: string | null
}

const REPOSITORY = 'BlinkDL/rwkv7-g1'

/** Null where none of them is there or fits. Throws where the hub cannot be asked. */
export async function firstModel(hub: Hub, memoryBytes: number): Promise<FirstModel | null> {
  const files = await listFiles(hub, REPOSITORY)
  const paths = files.map(({ path }) => path)
  for (const name of FIRST_NAMES) {
    const path = newestNamed(name, paths)
    const file = files.find((one) => one.path === path)
    if (file === undefined || !isSmallFor(memoryBytes, file.size)) continue
    return { name, file: file.path, bytes: file.size, licence: await licenceOf(hub, REPOSITORY) }
  }
  return null
}
