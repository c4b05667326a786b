/**
 * One of several matrices that a checkpoint keeps in one tensor, as a tensor of its own: stacked along the first axis
 * or side by side in columns. Knows shapes, not what the parts mean.
 */

import { BYTES_PER_ELEMENT } from '../backend/half.ts'
import { SkeinError } from '../errors.ts'
import { numElements, type TensorEntry } from './formats/format.ts'

/** The matrices of a tensor [n, rows, columns]. */
export function stackedParts(entry: TensorEntry): TensorEntry[] {
  const [n = 0, ...shape] = entry.shape
  if (shape.length !== 2) throw misshapen(entry, 'a stack of matrices')
  const size = numElements({ shape })
  return Array.from({ length: n }, (_, i) => ({
    name: `${entry.name}[${i}]`,
    shape,
    dtype: entry.dtype,
    read: (start, end) => entry.read(i * size + start, i * size + end),
  }))
}

/** The n matrices [rows, columns/n] of a tensor [rows, columns]. */
export function columnParts(entry: TensorEntry, n: number): TensorEntry[] {
  const [rows = 0, columns = 0] = entry.shape
  if (entry.shape.length !== 2 || columns % n !== 0)
    throw misshapen(entry, `${n} matrices side by side`)
  const width = columns / n
  return Array.from({ length: n }, (_, i) => ({
    name: `${entry.name}[:, ${i * width}:]`,
    shape: [rows, width],
    dtype: entry.dtype,
    read: (start, end) =>
      readColumns(entry, columns, i * width, width).subarray(
        start * BYTES_PER_ELEMENT[entry.dtype],
        end * BYTES_PER_ELEMENT[entry.dtype],
      ),
  }))
}

/** A copy: low-rank factors are small. */
function readColumns(entry: TensorEntry, columns: number, first: number, width: number) {
  const size = BYTES_PER_ELEMENT[entry.dtype]
  const rows = numElements(entry) / columns
  const whole = entry.read(0, rows * columns)
  const part = new Uint8Array(rows * width * size)
  for (let row = 0; row < rows; row++) {
    const from = (row * columns + first) * size
    part.set(whole.subarray(from, from + width * size), row * width * size)
  }
  return part
}

function misshapen(entry: TensorEntry, expected: string): SkeinError {
  return new SkeinError(
    'unsupported_weights',
    `${entry.name} has shape [${entry.shape.join(', ')}]; ${expected} was expected`,
  )
}
