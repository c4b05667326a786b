/** Whether a model fits, told from the size of its file: an estimate, and called one. */
import type { GpuInfo, SystemInfo } from '../../../src/gateway/contract.ts'

/** Beside its weights a worker has states, buffers and its process. */
const OVERHEAD = 1.15
const PROCESS_BYTES = 300e6

export type Fit = 'fits' | 'tight' | 'too large'

export interface FitIn {
  /** "GPU 0" or "RAM" */
  readonly place: string
  readonly fit: Fit
}

export function neededBytes(fileBytes: number): number {
  return fileBytes * OVERHEAD + PROCESS_BYTES
}

/** Of memory that is free now, and of memory that would be if all else went. */
export function fitOf(needed: number, free: number, total: number): Fit {
  if (needed <= free) return 'fits'
  return needed <= total * 0.9 ? 'tight' : 'too large'
}

/** On the roomiest GPU where there is one, else in the memory of the machine. */
export function fitOn(
  fileBytes: number,
  { memory, gpus }: Pick<SystemInfo, 'memory' | 'gpus'>,
  freeBytes: number,
): FitIn {
  const needed = neededBytes(fileBytes)
  const best = [...gpus].sort((a, b) => freeOf(b) - freeOf(a))[0]
  if (best === undefined) {
    return { place: 'RAM', fit: fitOf(needed, freeBytes, memory.total_bytes) }
  }
  const total = best.memory_total_mb * 2 ** 20
  return { place: `GPU ${best.index}`, fit: fitOf(needed, freeOf(best), total) }
}

function freeOf({ memory_total_mb, memory_used_mb }: GpuInfo): number {
  return (memory_total_mb - memory_used_mb) * 2 ** 20
}
