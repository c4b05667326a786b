/** Random matrices in GGUF's blocks, as a checkpoint returns them. */
import { PACKED_BLOCKS, packedRowBytes } from '../../src/backend/quantised.ts'
import type { MatrixSource, PackedType } from '../../src/backend/weight-types.ts'
import { unpackBlocks } from '../../src/model/formats/gguf/blocks.ts'
import { normals } from '../backend/kit.ts'
import { encodeAs } from './gguf.ts'

const sources = new Map<string, MatrixSource>()

/** Unusual scales: every third one is negative, or that of the third row's last block is NaN. */
export type OddScales = 'negative' | 'NaN'

/** Rows with different magnitudes and means, so that scales and minimums differ. Made once for all devices. */
export function packedSource(type: PackedType, rows: number, columns: number, scales?: OddScales): MatrixSource {
  const key = `${type} ${rows}×${columns} ${scales}`
  const source = sources.get(key) ?? encodedSource(type, rows, columns, scales)
  sources.set(key, source)
  return source
}

function encodedSource(type: PackedType, rows: number, columns: number, scales?: OddScales): MatrixSource {
  const weights = normals(rows * columns, rows + columns, 1 / Math.sqrt(columns))
  for (let i = 0; i < weights.length; i++)
    weights[i] = weights[i]! * (1 + Math.floor(i / columns) / rows) + 0.3 / Math.sqrt(columns)
  const blocks = encodeAs(type, weights)
  const rowBytes = packedRowBytes(type, columns)
  if (scales !== undefined) changeScales(type, blocks, rowBytes, scales)
  const values = new Float32Array(rows * columns)
  unpackBlocks(type, blocks, values)
  const bytes = new Uint8Array(values.buffer)
  return {
    name: `${type} ${rows}×${columns}`,
    rows,
    columns,
    dtype: 'f32',
    readRows: (start, end) => bytes.slice(4 * start * columns, 4 * end * columns),
    packed: { type, readRows: (start, end) => blocks.slice(start * rowBytes, end * rowBytes) },
  }
}

function changeScales(type: PackedType, blocks: Uint8Array, rowBytes: number, scales: OddScales): void {
  const size = PACKED_BLOCKS[type].bytes
  const view = new DataView(blocks.buffer, blocks.byteOffset, blocks.length)
  // An f16, which only in Q6_K follows what it scales.
  const scaleAt = (block: number) => size * block + (type === 'Q6_K' ? size - 2 : 0)
  if (scales === 'NaN') view.setUint16(scaleAt((3 * rowBytes) / size - 1), 0x7e00, true)
  else
    for (let block = 0; block < blocks.length / size; block += 3)
      view.setUint16(scaleAt(block), view.getUint16(scaleAt(block), true) ^ 0x8000, true)
}
