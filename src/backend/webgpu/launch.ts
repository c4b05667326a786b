/** What a recorded op is made of, and what recording one needs. */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Batch, Capacity } from '../batch.ts'
import type { Access, KernelVariant, WebgpuDevice } from './device.ts'
import type { Halves, HalvesOf, Keeper } from './products/halves.ts'
import type { Kernel } from './source.ts'
import type { WebgpuStatePool } from './states.ts'

/** The sizes of a step that launches depend on. */
export type StepShape = Pick<Batch, 'numTokens' | 'numRows' | 'numLogits' | 'numSamples'>

export interface Launch {
  readonly bindings: GPUBindGroup
  /** Which kernel, and its workgroups; null where the step has nothing for it. */
  plan(step: StepShape): Planned | null
}

export interface Planned {
  readonly kernel: Kernel
  /** Where the kernel writes its outputs rounded, too. */
  readonly kept?: GPUBindGroup
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
  readonly halves: Record<HalvesOf, Halves>
  /** Of tensors, by their start: who writes them last, and can do so as f16, too. */
  readonly keepers: Map<number, Keeper>
  /** Tensors, by their start, that something else than products by matrices reads in steps that have these. */
  readonly whole: Set<number>
  /** A launch that is made when all is recorded: by then it is known who reads what, and how much room that takes. */
  addLater(make: () => Launch): void
  /** Parameters of one launch, in the order of the kernel's struct. */
  params(words: readonly Word[]): GPUBufferBinding
  bind(access: readonly Access[], params: GPUBufferBinding, buffers: readonly GPUBuffer[]): GPUBindGroup
  kernel(file: string, access: readonly Access[], variant?: KernelVariant): Kernel
}

/** Tokens beyond one a row from which on three kernels, of which one goes token by token, are faster than one. */
const LEAST_PROMPT = 16

export function hasPrompts({ numTokens, numRows }: StepShape): boolean {
  return numTokens >= numRows + LEAST_PROMPT
}

/** Threads that share a row of a state. */
export type RowParts = 1 | 4 | 8

/** State rows of a workgroup of wkv7-scan.wgsl and of its threads, and the bytes of shared memory that its tokens' vectors may take. */
const SCAN = {
  1: { most: 32, each: 1, bytes: 12_000 },
  4: { most: 16, each: 1, bytes: 24_000 },
  8: { most: 16, each: 1, bytes: 24_000 },
} as const
/** Where all rows are so many, they keep a large GPU busy though threads have two. */
const MANY_ROWS = 4096
const SCAN_OF_MANY = { most: 32, each: 2, bytes: 25_000 } as const
/** Loads are written out, and a processor compiles each: fewer of them. */
const SCAN_IN_SOFTWARE = { most: 32, bytes: 16_000 }
/** w, k, kk, b, r. */
const SCAN_VECTORS = 5

/** Threads bring as many vectors each. */
export function scanConstants({ gpu, isSoftware }: WebgpuDevice, heads: number, N: number, parts: RowParts) {
  const isMany = parts === 8 && heads * N >= MANY_ROWS
  const own = isMany ? SCAN_OF_MANY : SCAN[parts]
  const { most, each, bytes } = isSoftware && parts === 4 ? { ...own, ...SCAN_IN_SOFTWARE } : own
  const rows = N % most === 0 ? most : most / 2
  const fitting = Math.floor(
    Math.min(bytes, gpu.limits.maxComputeWorkgroupStorageSize) / (4 * (SCAN_VECTORS * N + 2 * rows)),
  )
  const TOKENS = Math.max(4, 2 ** Math.floor(Math.log2(fitting)))
  const threads = (rows * parts) / each
  const LOADS = (TOKENS * N) / 4 / threads
  assert(Number.isInteger(LOADS), `heads of ${N} by ${threads} threads`)
  const VALUES = Math.ceil((TOKENS * rows) / 4 / threads)
  return {
    N,
    ROWS4: rows / 4,
    TOKENS,
    VECTORS: SCAN_VECTORS,
    ONES: each % 2,
    TWOS: (each - (each % 2)) / 2,
    EACH_ROWS: each,
    LOADS,
    VALUES,
  }
}

/** Of a kernel that steps states. */
export function statesVariant(
  { shape: { headSize }, wkvType }: WebgpuStatePool,
  constants: Readonly<Record<string, number>>,
  parts: RowParts,
): KernelVariant {
  const EACH = headSize / 4 / parts
  // Vectors of a thread that lie side by side.
  const TOGETHER = { f32: 1, f16: 2 }[wkvType]
  const vectors = { N4: headSize / 4, N8: headSize / 8, PARTS: parts, EACH, PAIRS: EACH / 2, TOGETHER }
  const STATE = { f32: 'wkv-state', f16: 'wkv-state-f16' }[wkvType]
  const ROW_PARTS = { 1: 'row-parts', 4: 'row-parts-quads', 8: 'row-parts-eights' }[parts]
  return { constants: { ...constants, ...vectors }, files: { STATE, ROW_PARTS } }
}

export function wkvWords(pool: WebgpuStatePool): Word[] {
  return [pool.shape.channels, pool.startOf('wkv'), pool.slotSize, pool.numSlots]
}

/** Two vectors of four. */
export function eight(places: readonly number[], none = 0): number[] {
  return Array.from({ length: 8 }, (_, i) => places[i] ?? none)
}
