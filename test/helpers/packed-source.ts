/** Random matrices in GGUF's blocks, as a checkpoint hands them over. */
import { packedRowBytes } from '../../src/backend/quantised.ts'
import type { MatrixSource, PackedType } from '../../src/backend/weight-types.ts'
import { unpackBlocks } from '../../src/model/formats/gguf/blocks.ts'
import { normals } from '../backend/kit.ts'
import { encodeAs } from './gguf.ts'

const sources = new Map<string, MatrixSource>()

/** Rows of different sizes, so that scales differ, and with a mean, so that minimums do. Made once for all devices. */
export function packedSource(type: PackedType, rows: number, columns: number): MatrixSource {
  const key = `${type} ${rows}×${columns}`
  const source = sources.get(key) ?? encodedSource(type, rows, columns)
  sources.set(key, source)
  return source
}

function encodedSource(type: PackedType, rows: number, columns: number): MatrixSource {
  const weights = normals(rows * columns, rows + columns, 1 / Math.sqrt(columns))
  for (let i = 0; i < weights.length; i++)
    weights[i] = weights[i]! * (1 + Math.floor(i / columns) / rows) + 0.3 / Math.sqrt(columns)
  const blocks = encodeAs(type, weights)
  const values = new Float32Array(rows * columns)
  unpackBlocks(type, blocks, values)
  const bytes = new Uint8Array(values.buffer)
  const rowBytes = packedRowBytes(type, columns)
  return {
    name: `${type} ${rows}×${columns}`,
    rows,
    columns,
    dtype: 'f32',
    readRows: (start, end) => bytes.slice(4 * start * columns, 4 * end * columns),
    packed: { type, readRows: (start, end) => blocks.slice(start * rowBytes, end * rowBytes) },
  }
}
