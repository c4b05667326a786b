/** Inputs of products by matrices, as f16, and of dot products of bytes, rounded to them: where they lie, and who writes them. */
/// <reference types="@webgpu/types" />
import { assert } from '../../../errors.ts'
import type { QuantisedType } from '../../weight-types.ts'
import { type KernelVariant, USAGE, type WebgpuDevice } from '../device.ts'
import type { HeldType } from '../resources.ts'

/**
 * Buffers in which products find their inputs, rounded to f16 or to bytes: those that a launch before has rounded, whose place the
 * next product's take, and those that products and other ops have written so. No launch writes the buffer that it reads.
 */
export type HalvesOf = 'rounded' | 'products' | 'others' | 'bytesOfProducts' | 'bytesOfOthers'

/** Tokens from which on matrices multiply, where there are some: of fewer, each has the bits that it has alone. */
export const LEAST_BY_MATRICES = 5
/** Rows of inputs by matrices are padded to whole steps of every form, with zeros. */
export const PADDED = 512

export class Halves {
  readonly #device: WebgpuDevice
  /** Vectors of eight. */
  #most = 0
  readonly #places = new Map<string, number>()
  #buffer: GPUBuffer | undefined
  #bindings: GPUBindGroup | undefined

  constructor(device: WebgpuDevice) {
    this.#device = device
  }

  /** From the beginning. */
  reserve(eights: number): void {
    assert(this.#buffer === undefined, 'halves reserved after they were bound')
    this.#most = Math.max(this.#most, eights)
  }

  /** Of a tensor that takes so many vectors: behind all others, and the same for whoever asks. */
  placeOf(start: number, columns: number, eights: number): number {
    const key = `${start} ${columns}`
    let place = this.#places.get(key)
    if (place === undefined) {
      place = this.#most
      this.#places.set(key, place)
      this.reserve(place + eights)
    }
    return place
  }

  /** Made when first bound, as large as all products need it; zeros. Vectors of 16 bytes. */
  get buffer(): GPUBuffer {
    this.#buffer ??= this.#device.buffer(16 * this.#most, USAGE.storage)
    return this.#buffer
  }

  /** For kernels that write into it. */
  get bindings(): GPUBindGroup {
    this.#bindings ??= this.#device.bindGroup(['write'], [this.buffer])
    return this.#bindings
  }

  dispose(): void {
    if (this.#buffer) this.#device.free(this.#buffer)
  }
}

/** Vectors of eight of so many rows, in whole matrices. */
export function eightsOf(rows: number, columns: number, side: number): number {
  return Math.ceil(rows / side) * side * (Math.ceil(columns / PADDED) * (PADDED / 8))
}

/** Of a token whose inputs are rounded to bytes: vectors of eight inputs, and the units of its groups, four a vector. */
export function roundedVectors(columns: number): number {
  const groups = Math.ceil(columns / GROUP)
  return 4 * groups + Math.ceil(groups / 4)
}

/** What keepers need of a recorder. */
interface Keeping {
  readonly device: WebgpuDevice
  readonly halves: Readonly<Record<HalvesOf, Halves>>
  /** Of tensors, by their start: who writes them last, and can do so as f16, too. */
  readonly keepers: Map<number, Keeper>
  readonly whole: ReadonlySet<number>
}

/** Weights that are multiplied as bytes. Each type has its own order of inputs. */
export type ByDots = Extract<QuantisedType, 'i8' | 'q4'>
/** For matrices, or for dot products of bytes. */
export type KeptAs = 'halves' | 'bytes'

/** Where an op can keep what it writes, if at all. */
interface Into {
  readonly halves: 'products' | 'others' | null
  readonly bytes: 'bytesOfProducts' | 'bytesOfOthers' | null
}

/** An op that writes tensors, and rounded ones, too, if a product asks for it while the program is recorded. */
export class Keeper {
  readonly #recorder: Keeping
  readonly #into: Into
  readonly #columns = new Map<number, number>()
  readonly #places = { halves: new Map<number, number>(), bytes: new Map<number, number>() }
  /** All bytes are for weights of one type. */
  #type: ByDots | null

  constructor(recorder: Keeping, into: Into, type: ByDots | null = null) {
    this.#recorder = recorder
    this.#into = into
    this.#type = type
  }

  /** From now on it is who has written that tensor. */
  writes(start: number, columns: number): void {
    this.#columns.set(start, columns)
    this.#recorder.keepers.set(start, this)
  }

  has(start: number, columns: number): boolean {
    return this.#columns.get(start) === columns
  }

  /** The buffer in which it can keep inputs of a product of that type. */
  into<As extends KeptAs>(as: As, type: HeldType): Into[As] {
    return as === 'halves' || (this.#type ?? type) === type ? this.#into[as] : null
  }

  /** Where it is kept from now on, in vectors of 16 bytes: in all layers there. */
  keep(start: number, rows: number, as: KeptAs, type: HeldType): number {
    const columns = this.#columns.get(start)
    const of = this.into(as, type)
    assert(columns !== undefined && of !== null, 'a tensor that its op cannot keep')
    const { device, halves } = this.#recorder
    if (as === 'bytes') this.#type = type as ByDots
    const size =
      as === 'bytes'
        ? (LEAST_BY_MATRICES - 1) * roundedVectors(columns)
        : eightsOf(rows, columns, device.matrices?.side ?? 1)
    const place = halves[of].placeOf(start, columns, size)
    this.#places[as].set(start, place)
    return place
  }

  /** A word of parameters, when all is recorded. */
  wordOf(start: number, as: KeptAs): number {
    const place = this.#places[as].get(start)
    if (place === undefined) return NOT_KEPT
    if (as === 'bytes' || this.#recorder.whole.has(start)) return place
    this.#recorder.device.unwritten.add(start)
    return place + ALONE
  }

  keeps(as: KeptAs): boolean {
    return this.#places[as].size > 0
  }

  /** What launches that keep have besides their bindings. */
  bound(as: KeptAs): { readonly kept?: GPUBindGroup } {
    const of = this.#into[as]
    return of !== null && this.keeps(as) ? { kept: this.#recorder.halves[of].bindings } : {}
  }

  /** A kernel that keeps what it writes so. As bytes: OUTPUTS of KEPT_FOURS vectors of four of a workgroup. */
  variant({ constants, files }: KernelVariant, as: KeptAs): KernelVariant {
    const { matrices, threads } = this.#recorder.device
    if (as === 'bytes') {
      const ORDER = `dots-${this.#type}-order`
      return {
        constants: { OUTPUTS: 1, KEPT_FOURS: threads / 4, ...constants },
        files: { ...files, KEPT: KEPT.bytes, ORDER },
      }
    }
    assert(matrices !== null, 'f16 without matrices')
    return { constants: { ...constants, SIDE: matrices.side, PADDED }, files: { ...files, KEPT: KEPT.halves } }
  }
}

/** A kernel that keeps nothing. */
export function keepingNone({ constants, files }: KernelVariant): KernelVariant {
  return { constants: constants ?? {}, files: { ...files, KEPT: KEPT.none } }
}

const KEPT = { none: 'kept-none', halves: 'kept-halves', bytes: 'kept-bytes' } as const
export const NOT_KEPT = 0xffffffff
/** Of a place: as f32 the output is not written. */
const ALONE = 0x80000000
/** Inputs that are rounded together. */
export const GROUP = 32

/** Whether a kernel has the bind group of kept outputs. */
export function isKeeping({ files }: KernelVariant): boolean {
  return files?.KEPT === KEPT.halves || files?.KEPT === KEPT.bytes
}
