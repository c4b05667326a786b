/**
 * Small native memory at addresses that do not move, for the structs and argument lists that the driver reads through
 * pointers. Grows in chunks, is freed as a whole. Knows no CUDA.
 */
import { assert } from '../../../errors.ts'
import { allocateMemory, freeMemory, type Pointer, viewMemory } from '../../ffi.ts'

const CHUNK_BYTES = 64 << 10
/** The largest alignment of any type in a kernel's arguments. */
const ALIGNMENT = 16

export interface NativeBlock {
  readonly address: Pointer
  readonly view: DataView
}

interface Chunk {
  readonly address: Pointer
  readonly buffer: ArrayBuffer
}

export class NativeArena {
  readonly #chunks: Chunk[] = []
  /** Bytes of the last chunk that are handed out. */
  #used = 0
  #isDisposed = false

  /** Cleared memory, 16-byte aligned, valid until dispose(). */
  allocate(bytes: number): NativeBlock {
    assert(!this.#isDisposed, 'a native arena used after dispose()')
    const size = Math.ceil(bytes / ALIGNMENT) * ALIGNMENT
    let chunk = this.#chunks.at(-1)
    if (chunk === undefined || this.#used + size > chunk.buffer.byteLength)
      chunk = this.#grow(Math.max(size, CHUNK_BYTES))
    const view = new DataView(chunk.buffer, this.#used, bytes)
    const address = chunk.address + BigInt(this.#used)
    this.#used += size
    return { address, view }
  }

  #grow(bytes: number): Chunk {
    const address = allocateMemory(bytes)
    assert(address % BigInt(ALIGNMENT) === 0n, 'malloc aligns to 16 bytes')
    const chunk = { address, buffer: viewMemory(address, bytes) }
    new Uint8Array(chunk.buffer).fill(0)
    this.#chunks.push(chunk)
    this.#used = 0
    return chunk
  }

  dispose(): void {
    this.#isDisposed = true
    for (const { address } of this.#chunks.splice(0)) freeMemory(address)
  }
}
