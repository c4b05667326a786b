/** Estimates from the size of its file whether a model fits. */
import type { GpuInfo, SystemInfo } from '../../../src/gateway/contract.ts'

/** A worker needs memory for states, buffers and its process beside the weights. */
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

/** Judged by the memory that is free now, and by the memory of the empty machine. */
export function fitOf(needed: number, free: number, total: number): Fit {
  if (needed <= free) return 'fits'
  return needed <= total * 0.9 ? 'tight' : 'too large'
}

/** On the GPU with the most free memory, or without GPUs in the machine's memory. */
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
