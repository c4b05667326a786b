/**
 * The arguments of a kernel as the driver wants them: an array of pointers to the values, all in native memory.
 * Built once and launched many times; a value may be replaced by one of the same size. Knows no kernel.
 */
import { assert } from '../../../errors.ts'
import type { Pointer } from '../../ffi.ts'
import type { NativeArena } from '../driver/arena.ts'

/** An address in device memory; pointer arithmetic is addition. */
export type DevicePointer = bigint

/** A device pointer (8 bytes), a number of the C type named, or the bytes of a struct. */
export type KernelArg =
  | DevicePointer
  | { readonly i32: number }
  | { readonly f32: number }
  | { readonly i64: bigint }
  | Uint8Array

export const i32 = (value: number): KernelArg => ({ i32: value })
export const f32 = (value: number): KernelArg => ({ f32: value })
export const i64 = (value: bigint): KernelArg => ({ i64: value })

const POINTER_BYTES = 8
/** Every value starts on a boundary that suits any C type. */
const SLOT_BYTES = 16

export class KernelArgs {
  /** Address of the array of pointers: the kernelParams of cuLaunchKernel. */
  readonly address: Pointer
  readonly count: number
  readonly #slots: readonly { readonly view: DataView; readonly kind: string }[]

  constructor(arena: NativeArena, values: readonly KernelArg[]) {
    const pointers = arena.allocate(Math.max(1, values.length) * POINTER_BYTES)
    this.address = pointers.address
    this.count = values.length
    this.#slots = values.map((value, i) => {
      const bytes = byteLength(value)
      const slot = arena.allocate(Math.ceil(bytes / SLOT_BYTES) * SLOT_BYTES)
      pointers.view.setBigUint64(i * POINTER_BYTES, slot.address, true)
      write(slot.view, value)
      return { view: slot.view, kind: kindOf(value) }
    })
  }

  /** Replaces argument `index` for later launches; a captured graph keeps the value it was captured with. */
  set(index: number, value: KernelArg): void {
    const slot = this.#slots[index]
    assert(slot !== undefined, `kernel argument ${index} of ${this.count}`)
    const kind = kindOf(value)
    assert(slot.kind === kind, `kernel argument ${index} is ${slot.kind}, not ${kind}`)
    write(slot.view, value)
  }
}

function kindOf(value: KernelArg): string {
  if (typeof value === 'bigint') return 'pointer'
  if (value instanceof Uint8Array) return `struct of ${value.length} bytes`
  return Object.keys(value)[0]!
}

function byteLength(value: KernelArg): number {
  if (value instanceof Uint8Array) return Math.max(1, value.length)
  return typeof value === 'bigint' || 'i64' in value ? 8 : 4
}

function write(view: DataView, value: KernelArg): void {
  if (typeof value === 'bigint') view.setBigUint64(0, value, true)
  else if (value instanceof Uint8Array) new Uint8Array(view.buffer, view.byteOffset, value.length).set(value)
  else if ('i32' in value) {
    assert((value.i32 | 0) === value.i32, `${value.i32} as an int argument`)
    view.setInt32(0, value.i32, true)
  } else if ('f32' in value) view.setFloat32(0, value.f32, true)
  else view.setBigInt64(0, value.i64, true)
}
