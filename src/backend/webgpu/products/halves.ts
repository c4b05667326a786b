/** Inputs of products by matrices, as f16: where they lie, and who writes them. */
/// <reference types="@webgpu/types" />
import { assert } from '../../../errors.ts'
import { type KernelVariant, USAGE, type WebgpuDevice } from '../device.ts'

/**
 * Buffers in which products by matrices find their inputs as f16: those that a launch before has rounded, whose place the next
 * product's take, and those that products and other ops have written so. No launch writes the buffer that it reads.
 */
export type HalvesOf = 'rounded' | 'products' | 'others'

/** Tokens from which on matrices multiply, where there are some: of fewer, each has the bits that it has alone. */
export const LEAST_BY_MATRICES = 9
/** Rows of inputs by matrices are padded to whole steps of every form, with zeros. */
export const PADDED = 512

export class Halves {
  readonly #device: WebgpuDevice
  /** Vectors of eight. */
  #most = 0
  readonly #places = new Map<string, number>()
  #buffer: GPUBuffer | undefined

  constructor(device: WebgpuDevice) {
    this.#device = device
  }

  /** From the beginning. */
  reserve(eights: number): void {
    assert(this.#buffer === undefined, 'halves reserved after they were bound')
    this.#most = Math.max(this.#most, eights)
  }

  /** Of a tensor: behind all others, and the same for whoever asks. */
  placeOf(start: number, rows: number, columns: number): number {
    const key = `${start} ${columns}`
    let place = this.#places.get(key)
    if (place === undefined) {
      place = this.#most
      this.#places.set(key, place)
      this.reserve(place + eightsOf(rows, columns, this.#device.matrices?.side ?? 1))
    }
    return place
  }

  /** Made when first bound, as large as all products need it; zeros. f16 [eights, 8] */
  get buffer(): GPUBuffer {
    this.#buffer ??= this.#device.buffer(16 * this.#most, USAGE.storage)
    return this.#buffer
  }

  dispose(): void {
    if (this.#buffer) this.#device.free(this.#buffer)
  }
}

/** Vectors of eight of so many rows, in whole matrices. */
export function eightsOf(rows: number, columns: number, side: number): number {
  return Math.ceil(rows / side) * side * (Math.ceil(columns / PADDED) * (PADDED / 8))
}

/** What keepers need of a recorder. */
interface Keeping {
  readonly device: WebgpuDevice
  readonly halves: Readonly<Record<HalvesOf, Halves>>
  /** Of tensors, by their start: who writes them last, and can do so as f16, too. */
  readonly keepers: Map<number, Keeper>
}

/** An op that writes tensors, for matrices as f16, too, if a product asks for it while the program is recorded. */
export class Keeper {
  readonly of: HalvesOf
  readonly #recorder: Keeping
  readonly #columns = new Map<number, number>()
  readonly #places = new Map<number, number>()

  constructor(recorder: Keeping, of: HalvesOf) {
    this.#recorder = recorder
    this.of = of
  }

  /** From now on it is who has written that tensor. */
  writes(start: number, columns: number): void {
    this.#columns.set(start, columns)
    this.#recorder.keepers.set(start, this)
  }

  has(start: number, columns: number): boolean {
    return this.#columns.get(start) === columns
  }

  /** Where it is kept from now on, in vectors of eight: in all layers there. */
  keep(start: number, rows: number): number {
    const columns = this.#columns.get(start)
    assert(columns !== undefined, 'a tensor that its op does not write')
    const place = this.#recorder.halves[this.of].placeOf(start, rows, columns)
    this.#places.set(start, place)
    return place
  }

  /** A word of parameters. */
  wordOf(start: number): number {
    return this.#places.get(start) ?? NO_HALVES
  }

  get keepsAny(): boolean {
    return this.#places.size > 0
  }

  /** What a launch of the op has besides its bindings. */
  get bound(): { readonly kept?: GPUBindGroup } {
    const { device, halves } = this.#recorder
    return this.keepsAny ? { kept: device.bindGroup(['write'], [halves[this.of].buffer]) } : {}
  }
}

/** A kernel that keeps what it writes, or does not. */
export function keeping(device: WebgpuDevice, { constants, files }: KernelVariant, isKept: boolean): KernelVariant {
  const { matrices } = device
  if (!isKept || matrices === null) return { constants: constants ?? {}, files: { ...files, HALVES: 'halves-none' } }
  return { constants: { ...constants, SIDE: matrices.side, PADDED }, files: { ...files, HALVES: KEPT } }
}

const NO_HALVES = 0xffffffff
/** The file of kernels that keep outputs. */
export const KEPT = 'halves-write'
