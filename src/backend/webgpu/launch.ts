/** What a recorded op is made of, and what recording one needs. */
/// <reference types="@webgpu/types" />
import type { Batch, Capacity } from '../batch.ts'
import type { Access, KernelVariant, WebgpuDevice } from './device.ts'

/** The sizes of a step that launches depend on. */
export type StepShape = Pick<Batch, 'numTokens' | 'numRows' | 'numLogits' | 'numSamples'>

export interface Launch {
  readonly bindings: GPUBindGroup
  /** Which kernel, and its workgroups; null where the step has nothing for it. */
  plan(step: StepShape): Planned | null
}

export interface Planned {
  readonly pipeline: GPUComputePipeline
  readonly x: number
  readonly y: number
}

/** A number that is bits of f32 in the parameters. */
interface Float {
  readonly f32: number
}
export type Word = number | Float

export interface Recorder {
  readonly device: WebgpuDevice
  readonly capacity: Capacity
  readonly launches: Launch[]
  /** Parameters of one launch, in the order of the kernel's struct. */
  params(words: readonly Word[]): GPUBufferBinding
  bind(
    access: readonly Access[],
    params: GPUBufferBinding,
    buffers: readonly GPUBuffer[],
  ): GPUBindGroup
  kernel(file: string, access: readonly Access[], variant?: KernelVariant): GPUComputePipeline
}

/** State rows of a workgroup of wkv7-scan.wgsl, and the bytes of shared memory that its tokens' vectors may take. */
export const SCAN_ROWS = 32
const SCAN_BYTES = 12_000
/** w, k, kk, b, r. */
const SCAN_VECTORS = 5

/** Threads bring as many vectors each. */
export function scanConstants(N: number, rows: number) {
  const most = Math.floor(SCAN_BYTES / (4 * (SCAN_VECTORS * N + 2 * rows)))
  const TOKENS = Math.max(4, 2 ** Math.floor(Math.log2(most)))
  const LOADS = (TOKENS * N) / 4 / rows
  return { N, ROWS4: rows / 4, TOKENS, VECTORS: SCAN_VECTORS, LOADS, VALUES: TOKENS / 4 }
}
