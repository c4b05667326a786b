import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { normals } from '../backend/kit.ts'
import { writePth } from './pth.ts'

/** A random tuned state with a checkpoint's shape, or with other heads on request. */
export function writeTunedState(path: string, checkpointPath: string, heads: number | null = null): void {
  const checkpoint = openCheckpoint(checkpointPath)
  const [H, N] = checkpoint.tensors.get('blocks.0.att.r_k')!.shape as [number, number]
  const names = [...checkpoint.tensors.keys()].filter((name) => name.endsWith('.att.r_k'))
  checkpoint.close()
  writePth(
    path,
    names.map((name, i) => ({
      name: name.replace('r_k', 'time_state'),
      shape: [heads ?? H, N, N],
      values: normals((heads ?? H) * N * N, 7 + i, 8),
    })),
  )
}
