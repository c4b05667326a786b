/** A checkpoint onto a backend, by the architecture that its tensors show. */
import { type LoadableArchitecture, loadableArchitecture } from '../formats/describe.ts'
import type { LoadModel } from '../model.ts'
import { loadRwkv6 } from '../rwkv6.ts'
import { loadRwkv7 } from '../rwkv7.ts'

const LOADERS: Readonly<Record<LoadableArchitecture, LoadModel>> = {
  rwkv6: loadRwkv6,
  rwkv7: loadRwkv7,
  rwkv7a: loadRwkv7,
}

export const loadModel: LoadModel = (checkpoint, ...rest) =>
  LOADERS[loadableArchitecture(checkpoint)](checkpoint, ...rest)
