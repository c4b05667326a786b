/**
 * Which entries are matrices of a GGUF file's own blocks, and the blocks. Kept beside the entries, not in them: a view of
 * an entry (a slice, a transpose, with an adapter merged) is made by copying its fields, and must not inherit blocks
 * that are no longer its own.
 */

import { decodeFloats, encodeFloats } from '../../../backend/half.ts'
import { PACKED_BLOCKS, packedRowBytes } from '../../../backend/quantised.ts'
import type { PackedSource, PackedType } from '../../../backend/weight-types.ts'
import { SkeinError } from '../../../errors.ts'
import { quote } from '../byte-source.ts'
import type { TensorEntry } from '../format.ts'
import type { ReadBuffer } from '../read-buffer.ts'
import type { GgufTensor } from './gguf.ts'
import { isPackedType } from './types.ts'

const SOURCES = new WeakMap<TensorEntry, PackedSource>()

/** The blocks of a matrix that a file holds so, of a type that is computed with. */
export function packedSourceOf(entry: TensorEntry): PackedSource | undefined {
  return SOURCES.get(entry)
}

/** Notes where the blocks of an entry lie; nothing for types that are only read. */
export function placeBlocks(
  entry: TensorEntry,
  buffer: ReadBuffer,
  { shape, type, offset }: Pick<GgufTensor, 'shape' | 'type' | 'offset'>,
): void {
  const columns = shape[1]
  if (!isPackedType(type) || shape.length !== 2 || columns === undefined) return
  const rowBytes = packedRowBytes(type, columns)
  const readRows = (start: number, end: number) => buffer.read(offset + start * rowBytes, (end - start) * rowBytes)
  SOURCES.set(entry, { type, readRows })
}

/** `view`, which is `entry` under another name and times a power of two, has its blocks too. */
export function keepBlocks(view: TensorEntry, entry: TensorEntry, factor = 1): TensorEntry {
  const source = SOURCES.get(entry)
  if (source === undefined || view === entry) return view
  const { type } = source
  const readRows = (start: number, end: number) => {
    const blocks = source.readRows(start, end)
    if (factor !== 1) scaleBlocks(view.name, type, blocks, factor)
    return blocks
  }
  SOURCES.set(view, { type, readRows })
  return view
}

/** Where the scale of a block is, and its minimum: f16. */
const HALVES: Readonly<Record<PackedType, readonly number[]>> = {
  Q4_0: [0],
  Q4_1: [0, 2],
  Q5_0: [0],
  Q5_1: [0, 2],
  Q8_0: [0],
  Q4_K: [0, 2],
  Q5_K: [0, 2],
  Q6_K: [208],
}

/** In place; exact short of overflow, which is refused. */
function scaleBlocks(name: string, type: PackedType, blocks: Uint8Array, factor: number): void {
  const { bytes } = PACKED_BLOCKS[type]
  for (const first of HALVES[type]) {
    const halves = new Uint8Array((2 * blocks.length) / bytes)
    for (let at = first, i = 0; at < blocks.length; at += bytes, i += 2) halves.set(blocks.subarray(at, at + 2), i)
    const values = decodeFloats(halves, 'f16').map((value) => value * factor)
    if (values.some((value) => Math.abs(value) > MAX_HALF && Number.isFinite(value)))
      throw new SkeinError(
        'unsupported_weights',
        `${quote(name)}: a scale times ${factor} does not fit its f16; use --quant f32`,
      )
    const scaled = encodeFloats(values, 'f16')
    for (let at = first, i = 0; at < blocks.length; at += bytes, i += 2) blocks.set(scaled.subarray(i, i + 2), at)
  }
}

const MAX_HALF = 65504
