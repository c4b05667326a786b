/** A checkpoint's rows on their way to a backend: in blocks, each checked for its length. Knows no layout. */
import { assert, SkeinError } from '../errors.ts'
import { numScales, packedRowBytes, valueBytes } from './quantised.ts'
import type { MatrixSource, PackedType, QuantisedRows, QuantisedSource, SourceType } from './weight-types.ts'

export const SOURCE_BYTES: Readonly<Record<SourceType, number>> = { f32: 4, f16: 2, bf16: 2 }
/** Bytes read, and packed or uploaded, at a time: enough to keep all threads busy, little beside the model. */
const BLOCK_BYTES = 16 << 20

/** Rows per block, given a row's bytes: a multiple of `unit`, at least one. */
export function blockRows(rowBytes: number, unit = 1): number {
  return Math.max(1, Math.floor(BLOCK_BYTES / (rowBytes * unit))) * unit
}

/** Ranges of rows that make up a block each. */
export function* rowBlocks(rows: number, rowBytes: number, unit = 1): Generator<[start: number, end: number]> {
  const step = blockRows(rowBytes, unit)
  for (let start = 0; start < rows; start += step) yield [start, Math.min(start + step, rows)]
}

export function checkBytes(
  { name }: MatrixSource,
  start: number,
  end: number,
  { length }: Uint8Array,
  rowBytes: number,
): void {
  const expected = (end - start) * rowBytes
  if (length === expected) return
  throw new SkeinError('corrupt_weights', `${name}: rows ${start} to ${end} hold ${length} bytes, expected ${expected}`)
}

/** The rows of a source in blocks. */
export function* readBlocks(
  source: MatrixSource,
  unit = 1,
): Generator<[start: number, end: number, values: Uint8Array]> {
  const rowBytes = source.columns * SOURCE_BYTES[source.dtype]
  for (const [start, end] of rowBlocks(source.rows, rowBytes, unit)) {
    const values = source.readRows(start, end)
    checkBytes(source, start, end, values, rowBytes)
    yield [start, end, values]
  }
}

/** Rounded rows in blocks. */
export function* readQuantisedBlocks(
  source: MatrixSource,
  { type, readRows }: QuantisedSource,
  rowBytes: number,
  unit = 1,
): Generator<[start: number, end: number, rows: QuantisedRows]> {
  for (const [start, end] of rowBlocks(source.rows, rowBytes, unit)) {
    const rows = readRows(start, end)
    checkBytes(source, start, end, rows.values, valueBytes(type, source.columns))
    checkBytes(source, start, end, rows.scales, 2 * numScales(type, source.columns))
    yield [start, end, rows]
  }
}

/** The rows of a packed source in pieces, as the file has them. */
export function* readPackedBlocks(
  source: MatrixSource,
  type: PackedType,
  unit = 1,
): Generator<[start: number, end: number, blocks: Uint8Array]> {
  const { name, rows, columns, packed } = source
  assert(packed?.type === type, `${name} is not packed as ${type}`)
  const rowBytes = packedRowBytes(type, columns)
  for (const [start, end] of rowBlocks(rows, rowBytes, unit)) {
    const blocks = packed.readRows(start, end)
    checkBytes(source, start, end, blocks, rowBytes)
    yield [start, end, blocks]
  }
}
