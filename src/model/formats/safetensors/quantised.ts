/**
 * What `skein quantize` adds to safetensors: matrices rounded to few bits, as tensors of bytes (`X.weight`, I8 or U8)
 * with their scales beside them (`X.weight.scale`, BF16) and metadata that names the scheme. Owns these names and
 * checks; knows neither how weights were rounded nor what backends make of them.
 */

import { decodeRows, numScales, valueBytes } from '../../../backend/quantised.ts'
import type { QuantisedRows, QuantisedSource, QuantisedType } from '../../../backend/weight-types.ts'
import { type ByteSource, corrupt, quote, unsupported } from '../byte-source.ts'
import type { TensorEntry } from '../format.ts'
import { checkElements, ReadBuffer } from '../read-buffer.ts'

export const SCHEME_KEY = 'skein.quantisation'
export const VERSION_KEY = 'skein.quantisation.version'
/** Changes with every change of what the bytes mean. */
export const VERSION = '1'
export const SCALE_SUFFIX = '.scale'

const SCHEMES: readonly QuantisedType[] = ['i8', 'q4', 'nf4']

/** A tensor of bytes or of scales, as the header places it. */
interface StoredTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: string
  /** In the file, of its first byte. */
  readonly offset: number
}

/** The scheme that a file's metadata names; null for a file of plain tensors. */
export function schemeOf(source: ByteSource, metadata: ReadonlyMap<string, string>): QuantisedType | null {
  const name = metadata.get(SCHEME_KEY)
  if (name === undefined) return null
  const version = metadata.get(VERSION_KEY) ?? 'none'
  const scheme = SCHEMES.find((one) => one === name)
  if (scheme !== undefined && version === VERSION) return scheme
  throw unsupported(
    source,
    `holds weights quantised as ${quote(name)}, version ${quote(version)}; this Skein reads version ${VERSION} of ` +
      `${SCHEMES.join(', ')}: update it, or quantise the original file again`,
  )
}

/** The matrix of a tensor of bytes and its scales. */
export function quantisedEntry(
  source: ByteSource,
  scheme: QuantisedType,
  stored: StoredTensor,
  scales: StoredTensor | undefined,
): TensorEntry {
  const { name } = stored
  // Under a scheme of 4 bits the head keeps 8.
  const type = stored.dtype === 'I8' ? 'i8' : scheme
  const [rows = 0, bytes = 0] = stored.shape
  const columns = type === 'i8' ? bytes : 2 * bytes
  if (stored.shape.length !== 2 || (stored.dtype === 'U8') !== (type !== 'i8'))
    throw corrupt(source, `tensor ${quote(name)} is no matrix of ${scheme} weights`)
  const wanted = `[${rows}, ${numScales(type, columns)}]`
  if (scales?.dtype !== 'BF16' || `[${scales.shape.join(', ')}]` !== wanted)
    throw corrupt(source, `tensor ${quote(name)} needs ${quote(name + SCALE_SUFFIX)} in BF16 of shape ${wanted}`)
  return matrixEntry(source, type, { rows, columns, stored, scales })
}

interface StoredMatrix {
  readonly rows: number
  readonly columns: number
  readonly stored: StoredTensor
  readonly scales: StoredTensor
}

function matrixEntry(source: ByteSource, type: QuantisedType, { rows, columns, stored, scales }: StoredMatrix) {
  const { name } = stored
  const rowBytes = valueBytes(type, columns)
  const scaleBytes = 2 * numScales(type, columns)
  // Two, so that values and scales are valid together.
  const buffers = { values: new ReadBuffer(source), scales: new ReadBuffer(source) }
  const readRows = (start: number, end: number): QuantisedRows => ({
    values: buffers.values.read(stored.offset + start * rowBytes, (end - start) * rowBytes),
    scales: buffers.scales.read(scales.offset + start * scaleBytes, (end - start) * scaleBytes),
  })
  const entry: TensorEntry = {
    name,
    shape: [rows, columns],
    dtype: 'f32',
    packed: { type, bytes: rows * (rowBytes + scaleBytes) },
    read(start, end) {
      checkElements(name, start, end, rows * columns)
      const first = Math.floor(start / columns)
      const decoded = decodeRows(type, readRows(first, Math.ceil(end / columns)), columns)
      return new Uint8Array(decoded.buffer, 4 * (start - first * columns), 4 * (end - start))
    },
  }
  ROUNDED.set(entry, { type, readRows })
  return entry
}

/**
 * Kept beside the entries, not in them: a view of an entry (renamed, scaled, with an adapter merged) is made by copying
 * its fields, and must not inherit bytes that are no longer its own.
 */
const ROUNDED = new WeakMap<TensorEntry, QuantisedSource>()

/** The rounded rows of an entry that a file holds so. */
export function quantisedSourceOf(entry: TensorEntry): QuantisedSource | undefined {
  return ROUNDED.get(entry)
}
