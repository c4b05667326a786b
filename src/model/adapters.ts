/**
 * Adapters merged into a checkpoint: LoRA, DoRA, Bone and PiSSA of RWKV-PEFT, and whole tensors trained beside them. A
 * merged checkpoint computes the rows that are asked for, so loading never holds a second copy of the model; the sum is
 * made in f32 and rounded once to the type of the base. Knows nothing of files beyond opening them.
 */

import { BYTES_PER_ELEMENT, decodeFloats, encodeFloats } from '../backend/half.ts'
import { SkeinError } from '../errors.ts'
import { openCheckpoint } from './checkpoint.ts'
import { quote } from './formats/byte-source.ts'
import type { Checkpoint, TensorEntry } from './formats/format.ts'
import { readFloats } from './formats/tensor-values.ts'

export interface AdapterChoice {
  readonly path: string
  /** W += scale · B·A; alpha / r of the training. PiSSA and Bone have none: they are trained with 1. */
  readonly scale?: number | undefined
  /** PiSSA only: the factors that training began with, whose product was taken from the base. */
  readonly init?: string | undefined
}

/** The default of RWKV-Infer, and RWKV-PEFT's alpha 32 over rank 16. */
const DEFAULT_SCALE = 2

/** The base with all adapters merged, one after the other. Takes over the base; the adapters are read and closed. */
export function withAdapters(base: Checkpoint, adapters: readonly AdapterChoice[]): Checkpoint {
  return adapters.reduce(withAdapter, base)
}

function withAdapter(base: Checkpoint, choice: AdapterChoice): Checkpoint {
  const adapter = readAdapter(choice.path)
  const initial = choice.init === undefined ? undefined : readAdapter(choice.init)
  const changes = changesOf(base, adapter, initial, choice)
  if (initial && !changes.some(({ kind }) => kind === 'add'))
    throw unfit(adapter.path, `has no LoRA factors for those of ${initial.path} to be taken from`)
  const tensors = new Map(base.tensors)
  // Whole tensors first: factors in the same file were trained with them, not with the base's.
  const isWhole = ({ kind }: Change) => kind === 'replace'
  for (const change of [...changes.filter(isWhole), ...changes.filter((one) => !isWhole(one))]) {
    const { name } = change.entry
    tensors.set(name, mergedEntry({ ...change, entry: tensors.get(name)! })) // changes are of the base's
  }
  return { ...base, tensors }
}

interface Values {
  readonly shape: readonly number[]
  readonly values: Float32Array
}

interface Adapter {
  readonly path: string
  readonly tensors: ReadonlyMap<string, Values>
}

/** Adapters are small, so they are read whole. */
function readAdapter(path: string): Adapter {
  const checkpoint = openCheckpoint(path)
  try {
    const tensors = new Map<string, Values>()
    for (const entry of checkpoint.tensors.values()) {
      // The peft library puts this before every name, and `.weight` after its factors.
      const name = entry.name.replace(/^base_model\.model\./, '').replace(/\.(lora_[AB])(?:\.default)?\.weight$/, '.$1')
      if (tensors.has(name)) throw unfit(path, `holds ${quote(name)} twice`)
      tensors.set(name, { shape: entry.shape, values: readFloats(entry) })
    }
    if (tensors.size === 0) throw unfit(path, 'holds no tensors')
    return { path: checkpoint.path, tensors }
  } finally {
    checkpoint.close()
  }
}

/** A change to one tensor of the base. */
type Change = { readonly entry: TensorEntry } & (
  | { readonly kind: 'replace'; readonly values: Float32Array }
  | { readonly kind: 'bone'; readonly bone: Float32Array; readonly size: number }
  | {
      readonly kind: 'add'
      readonly products: readonly Product[]
      /** DoRA: what the length of each column becomes. */
      readonly lengths: Float32Array | undefined
    }
)

/** factor · b·a, of rank r: b [out, r], a [r, in] */
interface Product {
  readonly a: Float32Array
  readonly b: Float32Array
  readonly rank: number
  readonly factor: number
}

const PARTS = /^(.+)\.(lora_A|lora_B|lora_M|bone|init_lora_A|init_lora_B)$/

function changesOf(base: Checkpoint, adapter: Adapter, initial: Adapter | undefined, { scale }: AdapterChoice) {
  const changes: Change[] = []
  const done = new Set<string>()
  for (const [name, given] of adapter.tensors) {
    const module = PARTS.exec(name)?.[1]
    if (module === undefined) {
      changes.push(replacement(base, adapter, name, given))
      continue
    }
    if (done.has(module)) continue
    done.add(module)
    const entry = matrixOf(base, adapter, name, `${module}.weight`)
    const bone = adapter.tensors.get(`${module}.bone`)
    if (bone && ['A', 'B', 'M'].some((part) => adapter.tensors.has(`${module}.lora_${part}`)))
      throw unfit(adapter.path, `has both Bone and LoRA for ${quote(module)}`)
    changes.push(
      bone ? boneChange(adapter, entry, module, bone, scale) : addition(adapter, entry, module, initial, scale),
    )
  }
  return changes
}

function replacement(base: Checkpoint, adapter: Adapter, name: string, given: Values): Change {
  const entry = base.tensors.get(name)
  if (!entry) throw unknown(base, adapter, name)
  const sizes = (shape: readonly number[]) => shape.filter((size) => size !== 1).join(' × ')
  if (sizes(entry.shape) !== sizes(given.shape)) throw misshapen(adapter, name, given, entry)
  return { kind: 'replace', entry, values: given.values }
}

function matrixOf(base: Checkpoint, adapter: Adapter, part: string, name: string): TensorEntry {
  const entry = base.tensors.get(name)
  if (!entry) throw unknown(base, adapter, part)
  if (entry.shape.length !== 2) throw unfit(adapter.path, `adapts ${quote(name)}, which is no matrix`)
  return entry
}

function addition(
  adapter: Adapter,
  entry: TensorEntry,
  module: string,
  initial: Adapter | undefined,
  scale: number | undefined,
): Change {
  const lengths = adapter.tensors.get(`${module}.lora_M`)
  if (lengths && lengths.values.length !== entry.shape[1]) throw misshapen(adapter, `${module}.lora_M`, lengths, entry)
  if (initial && scale !== undefined && scale !== 1)
    throw unfit(adapter.path, `is a PiSSA adapter, which has no scale; leave ":${scale}" out`)
  const factor = initial ? 1 : (scale ?? DEFAULT_SCALE)
  const products = [productOf(adapter, entry, module, '', factor)]
  if (initial) products.push(productOf(initial, entry, module, 'init_', -1))
  return { kind: 'add', entry, products, lengths: lengths?.values }
}

function productOf(adapter: Adapter, entry: TensorEntry, module: string, prefix: '' | 'init_', factor: number) {
  const [rows, columns] = [entry.shape[0]!, entry.shape[1]!]
  const part = (letter: 'A' | 'B'): Values => {
    const name = `${module}.${prefix}lora_${letter}`
    const found = adapter.tensors.get(name)
    if (found) return found
    throw unfit(adapter.path, `has no ${quote(name)} beside the other parts of ${quote(module)}`)
  }
  const [a, b] = [part('A'), part('B')]
  const rank = a.shape[0] ?? 0
  if (a.shape.length !== 2 || a.shape[1] !== columns) throw misshapen(adapter, `${module}.${prefix}lora_A`, a, entry)
  if (b.shape.length !== 2 || b.shape[0] !== rows || b.shape[1] !== rank)
    throw misshapen(adapter, `${module}.${prefix}lora_B`, b, entry)
  return { a: a.values, b: b.values, rank, factor }
}

/** Bone [in / r, r, r]: every r × r block of W, in block column c, gains block·bone[c] + bone[c]. */
function boneChange(
  adapter: Adapter,
  entry: TensorEntry,
  module: string,
  given: Values,
  scale: number | undefined,
): Change {
  const [blocks = 0, size = 0, width] = given.shape
  const [rows, columns] = [entry.shape[0]!, entry.shape[1]!]
  const fits = given.shape.length === 3 && width === size && blocks * size === columns
  if (!fits || size === 0 || rows % size !== 0) throw misshapen(adapter, `${module}.bone`, given, entry)
  if (scale !== undefined && scale !== 1)
    throw unfit(adapter.path, `is a Bone adapter, which has no scale; leave ":${scale}" out`)
  return { kind: 'bone', entry, bone: given.values, size }
}

/** Rows are merged as they are read; nothing of the result is kept. */
function mergedEntry(change: Change): TensorEntry {
  const { entry } = change
  const { dtype } = entry
  if (change.kind === 'replace') {
    const bytes = encodeFloats(change.values, dtype)
    const size = BYTES_PER_ELEMENT[dtype]
    return { ...entry, read: (start, end) => bytes.subarray(start * size, end * size) }
  }
  const merge = change.kind === 'bone' ? boneRows(change) : addedRows(change)
  const columns = entry.shape[1]!
  const unit = change.kind === 'bone' ? change.size : 1
  const read = (start: number, end: number) => {
    // Whole rows, for Bone whole blocks of rows, that contain the elements.
    const first = Math.floor(start / (columns * unit)) * unit
    const last = Math.ceil(end / (columns * unit)) * unit
    const values = decodeFloats(entry.read(first * columns, last * columns), dtype)
    merge(values, first, last)
    return encodeFloats(values.subarray(start - first * columns, end - first * columns), dtype)
  }
  return { ...entry, read }
}

/** Changes `values`, rows [first, last) of the matrix, in place. */
type MergeRows = (values: Float32Array, first: number, last: number) => void

function addedRows({ entry, products, lengths }: Extract<Change, { kind: 'add' }>): MergeRows {
  const columns = entry.shape[1]!
  const add: MergeRows = (values, first, last) => {
    for (const product of products) {
      for (let row = first; row < last; row++)
        addProduct(values.subarray((row - first) * columns), product, row, columns)
    }
  }
  if (!lengths) return add
  let ratios: Float32Array | undefined
  return (values, first, last) => {
    ratios ??= columnRatios(entry, add, lengths)
    add(values, first, last)
    for (let i = 0; i < values.length; i++) values[i]! *= ratios[i % columns]!
  }
}

/** y += factor · b[row]·a, four ranks at a time: a pass over y costs as much as a product. */
function addProduct(y: Float32Array, product: Product, row: number, columns: number): void {
  const { a, b, rank, factor } = product
  // Beyond the rank: nothing of the last row.
  const coefficient = (k: number) => (k < rank ? factor * b[row * rank + k]! : 0)
  const start = (k: number) => Math.min(k, rank - 1) * columns
  for (let k = 0; k < rank; k += 4) {
    const [b0, b1, b2, b3] = [coefficient(k), coefficient(k + 1), coefficient(k + 2), coefficient(k + 3)]
    const [a0, a1, a2, a3] = [start(k), start(k + 1), start(k + 2), start(k + 3)]
    for (let i = 0; i < columns; i++) y[i]! += b0 * a[a0 + i]! + b1 * a[a1 + i]! + b2 * a[a2 + i]! + b3 * a[a3 + i]!
  }
}

const DORA_EPS = 1e-6
const PASS_ELEMENTS = 1 << 20

/** DoRA: M / (‖column‖ + eps) of the matrix after the addition, in one pass over it. */
function columnRatios(entry: TensorEntry, add: MergeRows, lengths: Float32Array): Float32Array {
  const [rows, columns] = [entry.shape[0]!, entry.shape[1]!]
  const squares = new Float64Array(columns)
  const step = Math.max(1, Math.floor(PASS_ELEMENTS / columns))
  for (let first = 0; first < rows; first += step) {
    const last = Math.min(first + step, rows)
    const values = decodeFloats(entry.read(first * columns, last * columns), entry.dtype)
    add(values, first, last)
    for (let i = 0; i < values.length; i++) squares[i % columns]! += values[i]! ** 2
  }
  return lengths.map((length, i) => length / (Math.sqrt(squares[i]!) + DORA_EPS))
}

function boneRows({ entry, bone, size }: Extract<Change, { kind: 'bone' }>): MergeRows {
  const columns = entry.shape[1]!
  return (values) => {
    const original = new Float32Array(size)
    for (let row = 0; row < values.length; row += columns) {
      const within = (row / columns) % size // `first` is a multiple of the block's size
      for (let block = 0; block < columns; block += size) {
        const at = row + block
        original.set(values.subarray(at, at + size))
        for (let k = 0; k < size; k++) {
          const from = (block + k) * size
          const weight = original[k]! + (k === within ? 1 : 0)
          for (let i = 0; i < size; i++) values[at + i]! += weight * bone[from + i]!
        }
      }
    }
  }
}

function unfit(path: string, problem: string): SkeinError {
  return new SkeinError('unsupported_weights', `${path} ${problem}; it cannot be merged`)
}

function unknown(base: Checkpoint, adapter: Adapter, name: string): SkeinError {
  return unfit(adapter.path, `has ${quote(name)}, for which ${base.path} has no tensor`)
}

function misshapen(adapter: Adapter, name: string, given: Values, entry: TensorEntry): SkeinError {
  const [found, wanted] = [given.shape.join(', '), entry.shape.join(', ')]
  return unfit(adapter.path, `has ${quote(name)} of shape [${found}], for ${quote(entry.name)} of [${wanted}]`)
}
