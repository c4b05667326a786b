/**
 * Device memory under a budget: large blocks straight from the driver, small ones out of shared slabs, every byte
 * counted. Knows nothing of what the memory holds.
 */
import { assert, SkeinError } from '../../../errors.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { DevicePointer } from '../kernel/args.ts'

/** The largest alignment that vector loads, TMA and cuBLASLt require. */
const ALIGNMENT = 256
/** The driver hands out pages of this size: smaller blocks share slabs. */
const PAGE_BYTES = 2 << 20
const SLAB_BYTES = 16 << 20

interface Placed {
  readonly bytes: number
  /** Null for a block of its own. */
  readonly slab: { readonly base: DevicePointer; readonly space: Slab } | null
}

export class DeviceMemory {
  readonly budgetBytes: number
  readonly #driver: CudaDriver
  readonly #placed = new Map<DevicePointer, Placed>()
  readonly #slabs = new Map<DevicePointer, Slab>()
  /** The slab of `sideBySide`. */
  #row: { readonly base: DevicePointer; readonly space: Slab; readonly size: number } | null = null
  /** Bytes taken from the driver: blocks of their own, and whole slabs. */
  #takenBytes = 0

  constructor(driver: CudaDriver, budgetBytes: number) {
    this.#driver = driver
    this.budgetBytes = budgetBytes
  }

  get takenBytes(): number {
    return this.#takenBytes
  }

  /** Bytes that alloc can still give in large blocks: the rest of the budget, as far as the device has it. */
  get freeBytes(): number {
    return Math.max(0, Math.min(this.budgetBytes - this.#takenBytes, deviceFree(this.#driver)))
  }

  /** `bytes` bytes, not cleared, 256-byte aligned. */
  alloc(bytes: number): DevicePointer {
    assert(Number.isSafeInteger(bytes) && bytes > 0, `an allocation of ${bytes} bytes`)
    const size = aligned(bytes)
    const row = this.#row
    const offset = row?.size === size ? row.space.alloc(size) : null
    if (row !== null && offset !== null) return this.#place(row.base, row.space, offset, size)
    if (size < PAGE_BYTES) return this.#allocSmall(size)
    const pointer = this.#take(size)
    this.#placed.set(pointer, { bytes: size, slab: null })
    return pointer
  }

  /** The next `count` blocks of so many bytes lie side by side, in the order in which they are asked for. */
  sideBySide(count: number, bytes: number): void {
    const size = aligned(bytes)
    const base = this.#take(count * size)
    const space = new Slab(count * size)
    this.#slabs.set(base, space)
    this.#row = { base, space, size }
  }

  #allocSmall(size: number): DevicePointer {
    for (const [base, space] of this.#slabs) {
      const offset = space === this.#row?.space ? null : space.alloc(size)
      if (offset !== null) return this.#place(base, space, offset, size)
    }
    const base = this.#take(SLAB_BYTES)
    const space = new Slab(SLAB_BYTES)
    this.#slabs.set(base, space)
    return this.#place(base, space, space.alloc(size)!, size)
  }

  #place(base: DevicePointer, space: Slab, offset: number, bytes: number): DevicePointer {
    const pointer = base + BigInt(offset)
    this.#placed.set(pointer, { bytes, slab: { base, space } })
    return pointer
  }

  #take(bytes: number): DevicePointer {
    if (this.#takenBytes + bytes > this.budgetBytes) throw this.#outOfMemory(bytes)
    const out = new BigUint64Array(1)
    try {
      this.#driver.call('cuMemAlloc_v2', out, bytes)
    } catch (error) {
      if (error instanceof SkeinError && error.code === 'out_of_memory') throw this.#outOfMemory(bytes)
      throw error
    }
    this.#takenBytes += bytes
    return out[0]!
  }

  #outOfMemory(bytes: number): SkeinError {
    return new SkeinError(
      'out_of_memory',
      `${mebibytes(bytes)} of device memory asked for: ${mebibytes(this.#takenBytes)} of a budget of ` +
        `${mebibytes(this.budgetBytes)} are in use, the device has ${mebibytes(deviceFree(this.#driver))} free; ` +
        'use fewer slots, a smaller step or --quant int8, or end other programs on the GPU',
    )
  }

  free(pointer: DevicePointer): void {
    const placed = this.#placed.get(pointer)
    assert(placed !== undefined, `device address ${pointer} freed but not allocated`)
    this.#placed.delete(pointer)
    if (placed.slab === null) this.#giveBack(pointer, placed.bytes)
    else this.#freeSmall(pointer, placed.slab.base, placed.slab.space)
  }

  #freeSmall(pointer: DevicePointer, base: DevicePointer, space: Slab): void {
    space.free(Number(pointer - base))
    if (!space.isEmpty) return
    this.#slabs.delete(base)
    if (space === this.#row?.space) this.#row = null
    this.#giveBack(base, space.bytes)
  }

  #giveBack(pointer: DevicePointer, bytes: number): void {
    this.#driver.call('cuMemFree_v2', pointer)
    this.#takenBytes -= bytes
  }

  dispose(): void {
    const blocks = [...this.#placed].filter(([, { slab }]) => slab === null)
    for (const [pointer, { bytes }] of blocks) this.#giveBack(pointer, bytes)
    for (const [base, { bytes }] of this.#slabs) this.#giveBack(base, bytes)
    this.#placed.clear()
    this.#slabs.clear()
    this.#row = null
  }
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT
}

/** Bytes that the device could give to anyone now. */
export function deviceFree(driver: CudaDriver): number {
  const free = new BigUint64Array(1)
  driver.call('cuMemGetInfo_v2', free, new BigUint64Array(1))
  return Number(free[0])
}

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 3 : 0)} MiB`
}

interface Gap {
  readonly start: number
  readonly bytes: number
}

/**
 * Addresses within one block of memory: first fit over a sorted list of gaps that grow together again when freed.
 * Knows offsets only, not whose memory it is.
 */
export class Slab {
  readonly bytes: number
  /** By start; no two touch. */
  readonly #gaps: Gap[]
  readonly #sizes = new Map<number, number>()

  constructor(bytes: number) {
    this.bytes = bytes
    this.#gaps = [{ start: 0, bytes }]
  }

  get isEmpty(): boolean {
    return this.#sizes.size === 0
  }

  get freeBytes(): number {
    return this.#gaps.reduce((sum, gap) => sum + gap.bytes, 0)
  }

  /** The offset of `bytes` bytes, or null when no gap is large enough. */
  alloc(bytes: number): number | null {
    const index = this.#gaps.findIndex((gap) => gap.bytes >= bytes)
    const gap = this.#gaps[index]
    if (gap === undefined) return null
    const rest = gap.bytes - bytes
    this.#gaps.splice(index, 1, ...(rest > 0 ? [{ start: gap.start + bytes, bytes: rest }] : []))
    this.#sizes.set(gap.start, bytes)
    return gap.start
  }

  free(start: number): void {
    const bytes = this.#sizes.get(start)
    assert(bytes !== undefined, `offset ${start} freed but not allocated`)
    this.#sizes.delete(start)
    const index = this.#gaps.findIndex((gap) => gap.start > start)
    const at = index === -1 ? this.#gaps.length : index
    const [before, after] = [this.#gaps[at - 1], this.#gaps[at]]
    const joinsBefore = before !== undefined && before.start + before.bytes === start
    const joinsAfter = after !== undefined && start + bytes === after.start
    const first = joinsBefore ? before.start : start
    const last = joinsAfter ? after.start + after.bytes : start + bytes
    this.#gaps.splice(joinsBefore ? at - 1 : at, Number(joinsBefore) + Number(joinsAfter), {
      start: first,
      bytes: last - first,
    })
  }
}
