/** The bytes of a C struct passed to a kernel by value, field by field, each aligned to its size. Knows no struct. */
import type { DevicePointer } from './args.ts'

/** The alignment of a struct that holds a pointer. */
const STRUCT_ALIGNMENT = 8

export class StructBytes {
  readonly #view = new DataView(new ArrayBuffer(1024))
  #length = 0

  #field(bytes: number): number {
    const at = Math.ceil(this.#length / bytes) * bytes
    this.#length = at + bytes
    return at
  }

  pointer(address: DevicePointer | null): this {
    this.#view.setBigUint64(this.#field(8), address ?? 0n, true)
    return this
  }

  i32(value: number): this {
    this.#view.setInt32(this.#field(4), value, true)
    return this
  }

  i64(value: number): this {
    this.#view.setBigInt64(this.#field(8), BigInt(value), true)
    return this
  }

  f32(value: number): this {
    this.#view.setFloat32(this.#field(4), value, true)
    return this
  }

  /** Skips to `bytes` from the start: the elements of an array that are not used. */
  padTo(bytes: number): this {
    this.#length = bytes
    return this
  }

  bytes(): Uint8Array {
    const length = Math.ceil(this.#length / STRUCT_ALIGNMENT) * STRUCT_ALIGNMENT
    return new Uint8Array(this.#view.buffer, 0, length)
  }
}
