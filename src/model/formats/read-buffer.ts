/**
 * The one buffer behind all tensors of a file: each read replaces the last, so loading a model costs no more memory
 * than its largest piece. Ranges are inside the file: the maker of an entry has checked that.
 */

import { BYTES_PER_ELEMENT } from '../../backend/half.ts'
import type { SourceType } from '../../backend/weight-types.ts'
import type { ByteSource } from './byte-source.ts'
import { numElements, type TensorEntry } from './format.ts'

/** From here on memory that is read into faster is worth asking for. */
const LARGE_BYTES = 1 << 20

export class ReadBuffer {
  readonly #source: ByteSource
  #bytes = new Uint8Array(0)
  /** The fast bytes of the source. */
  #fastBytes: Uint8Array | null = null

  constructor(source: ByteSource) {
    this.#source = source
  }

  /** Valid until the next read. */
  read(offset: number, length: number): Uint8Array {
    const view = this.#memory(length)
    this.#source.readInto(view, offset)
    return view
  }

  #memory(length: number): Uint8Array {
    if (length >= LARGE_BYTES) this.#fastBytes ??= this.#source.takeBuffer?.() ?? null
    const fast = this.#fastBytes
    if (fast && length >= LARGE_BYTES && length <= fast.byteLength) return fast.subarray(0, length)
    if (this.#bytes.byteLength < length) this.#bytes = new Uint8Array(length)
    return this.#bytes.subarray(0, length)
  }
}

interface PlacedTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: SourceType
  /** In the file, of element 0; the elements follow row by row. */
  readonly offset: number
}

/** A tensor that lies in the file as it is. */
export function placedEntry(buffer: ReadBuffer, tensor: PlacedTensor): TensorEntry {
  const { name, shape, dtype, offset } = tensor
  const size = BYTES_PER_ELEMENT[dtype]
  const count = numElements(tensor)
  return {
    name,
    shape,
    dtype,
    read: (start, end) => {
      checkElements(name, start, end, count)
      return buffer.read(offset + start * size, (end - start) * size)
    },
  }
}

/** Catches our own bugs: elements that a tensor does not have. */
export function checkElements(name: string, start: number, end: number, count: number): void {
  if (start >= 0 && start <= end && end <= count) return
  throw new RangeError(`${name}: elements ${start} to ${end} of ${count}`)
}
