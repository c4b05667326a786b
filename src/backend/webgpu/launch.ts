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
