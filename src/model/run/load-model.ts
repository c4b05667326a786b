/** A checkpoint onto a backend, by the architecture that its tensors show. */
import { isPacked, isRounded, type WeightType } from '../../backend/weight-types.ts'
import { type LoadableArchitecture, loadableArchitecture } from '../formats/describe.ts'
import type { Checkpoint } from '../formats/format.ts'
import { fileType, heldType } from '../formats/tensor-values.ts'
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

/** What a device is tested with before a checkpoint is loaded onto it, where devices are. */
export function testedOf(checkpoint: Checkpoint, wanted: WeightType | undefined) {
  const { tensors } = checkpoint
  const [key, table] = [tensors.get('blocks.0.ffn.key.weight'), tensors.get('emb.weight')]
  const plain = wanted === undefined || isRounded(wanted) || isPacked(wanted) ? undefined : wanted
  return {
    architecture: loadableArchitecture(checkpoint),
    // Without these tensors nothing will be loaded.
    large: wanted ?? (key ? fileType(key) : 'bf16'),
    plain: plain ?? (table ? heldType(table) : 'bf16'),
  }
}
