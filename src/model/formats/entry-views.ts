/**
 * Tensors seen otherwise than their file stores them: under another name, in another shape, as one slice of a stack,
 * transposed or scaled. Formats that differ from the native one are made of these, so that the model sees one set of
 * names and layouts. Nothing is copied until it is read.
 */

import { BYTES_PER_ELEMENT, decodeFloats, elementBits, encodeFloats } from '../../backend/half.ts'
import { type ByteSource, corrupt, quote } from './byte-source.ts'
import { numElements, type TensorEntry } from './format.ts'
import { checkElements } from './read-buffer.ts'
import { transpose } from './tensor-values.ts'

/** Throws corrupt_weights where two have one name. */
export function byName(source: Pick<ByteSource, 'path'>, entries: Iterable<TensorEntry>): Map<string, TensorEntry> {
  const tensors = new Map<string, TensorEntry>()
  for (const entry of entries) {
    if (tensors.has(entry.name)) throw corrupt(source, `holds ${quote(entry.name)} twice`)
    tensors.set(entry.name, entry)
  }
  return tensors
}

export function renamed(entry: TensorEntry, name: string): TensorEntry {
  return { ...entry, name }
}

/** Element `index` of a stack [n, …]. */
export function sliced(entry: TensorEntry, name: string, index: number): TensorEntry {
  const shape = entry.shape.slice(1)
  const size = numElements({ shape })
  return {
    ...entry,
    name,
    shape,
    read: (start, end) => {
      checkElements(name, start, end, size)
      return entry.read(index * size + start, index * size + end)
    },
  }
}

/** Every element times `factor`, a power of two: exact short of overflow and underflow. */
export function scaled(entry: TensorEntry, factor: number): TensorEntry {
  if (factor === 1) return entry
  const { dtype } = entry
  const read = (start: number, end: number) => {
    const values = decodeFloats(entry.read(start, end), dtype)
    for (let i = 0; i < values.length; i++) values[i]! *= factor
    return encodeFloats(values, dtype)
  }
  return { ...entry, read }
}

/**
 * Exchanges the last two axes. Low-rank factors are small, so a tensor is turned as a whole when it is first read;
 * only the last one turned is kept, however many entries share the transposer.
 */
export class Transposer {
  #held: { readonly entry: TensorEntry; readonly bytes: Uint8Array } | undefined

  view(entry: TensorEntry): TensorEntry {
    const axes = entry.shape.length
    if (axes < 2) return entry
    const [rows, columns] = [entry.shape[axes - 2]!, entry.shape[axes - 1]!]
    const shape = [...entry.shape.slice(0, -2), columns, rows]
    const count = numElements(entry)
    const size = BYTES_PER_ELEMENT[entry.dtype]
    const read = (start: number, end: number) => {
      checkElements(entry.name, start, end, count)
      return this.#turn(entry, rows, columns).subarray(start * size, end * size)
    }
    return { ...entry, shape, read }
  }

  #turn(entry: TensorEntry, rows: number, columns: number): Uint8Array {
    if (this.#held?.entry === entry) return this.#held.bytes
    const from = elementBits(entry.read(0, numElements(entry)), entry.dtype)
    const to = from.slice()
    const matrix = rows * columns
    for (let at = 0; at < from.length; at += matrix)
      to.set(transpose(from.subarray(at, at + matrix), rows, columns), at)
    this.#held = { entry, bytes: new Uint8Array(to.buffer) }
    return this.#held.bytes
  }
}
