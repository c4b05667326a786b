/**
 * Moves a checkpoint's tensors onto a backend by name, counting bytes for the progress bar. Owns the choice of how each
 * kind of tensor is held; knows nothing of what the tensors mean.
 */
import type { Backend, HostTable, Matrix, Norm, Table, Tensor } from '../backend/backend.ts'
import { BYTES_PER_ELEMENT } from '../backend/half.ts'
import { isPacked, isRounded, type RoundedType, type WeightType } from '../backend/weight-types.ts'
import { SkeinError } from '../errors.ts'
import { sliced } from './formats/entry-views.ts'
import { type Checkpoint, numElements, type TensorEntry } from './formats/format.ts'
import {
  fileType,
  halvedSource,
  heldType,
  matrixSource,
  readFloats,
  transposedSource,
  unpackedSource,
} from './formats/tensor-values.ts'

export type LoadProgress = (doneBytes: number, totalBytes: number) => void

export interface WeightOptions {
  /** Type of the large matrices; the file's own when absent. */
  readonly weightType?: WeightType | undefined
  readonly onProgress?: LoadProgress | undefined
}

/** The type that users name so; undefined: the file's own. */
export function weightTypeOf(quant: 'file' | 'int8' | Exclude<WeightType, 'i8'> = 'file'): WeightType | undefined {
  if (quant === 'file') return undefined
  return quant === 'int8' ? 'i8' : quant
}

const LAYER_NORM_EPS = 1e-5

export class WeightLoader {
  readonly #checkpoint: Checkpoint
  readonly #backend: Backend
  readonly #options: WeightOptions
  readonly #totalBytes: number
  #doneBytes = 0
  #deviceBytes = 0

  constructor(checkpoint: Checkpoint, backend: Backend, options: WeightOptions) {
    this.#checkpoint = checkpoint
    this.#backend = backend
    this.#options = options
    this.#totalBytes = [...checkpoint.tensors.values()].reduce((sum, t) => sum + byteLength(t), 0)
  }

  /** Bytes of everything loaded so far, as held on the device. */
  get deviceBytes(): number {
    return this.#deviceBytes
  }

  has(name: string): boolean {
    return this.#checkpoint.tensors.has(name)
  }

  /** A vector, whatever its stored rank ([1, 1, C], [H, N], …), in f32. */
  vector(name: string): Tensor {
    const entry = this.#entry(name)
    const values = readFloats(entry)
    this.#count(entry, values.byteLength)
    return this.#backend.tensor([values.length], values)
  }

  norm(name: string, eps = LAYER_NORM_EPS): Norm {
    return { weight: this.vector(`${name}.weight`), bias: this.vector(`${name}.bias`), eps }
  }

  /** What the first layer reads. */
  input() {
    return { emb: this.table('emb.weight'), ln0: this.norm('blocks.0.ln0') }
  }

  /** What reads the last layer. */
  output() {
    return { ln_out: this.norm('ln_out'), head: this.matrix('head.weight') }
  }

  /** A large matrix stored [out, in]. */
  matrix(name: string): Matrix {
    const entry = this.#entry(name)
    const source = matrixSource(entry)
    const wanted = this.#options.weightType ?? fileType(entry)
    return this.#counted(entry, this.#backend.matrix(source, heldMatrixType(name, wanted)))
  }

  /** Large matrices of one size, side by side unless they are quantised. */
  matrices<K extends string>(prefix: string, names: readonly K[]): Record<K, Matrix> {
    const entry = this.#entry(`${prefix}${names[0]}.weight`)
    const wanted = this.#options.weightType ?? fileType(entry)
    const { rows, columns } = matrixSource(entry)
    if (!isRounded(wanted) && !isPacked(wanted)) this.#backend.sideBySide?.(names.length, rows * columns)
    return Object.fromEntries(names.map((name) => [name, this.matrix(`${prefix}${name}.weight`)])) as Record<K, Matrix>
  }

  /** A matrix stored [out, in] that is never quantised. */
  plainMatrix(name: string): Matrix {
    const entry = this.#entry(name)
    return this.#counted(entry, this.#backend.matrix(matrixSource(entry), this.#plainType(entry)))
  }

  /** A low-rank factor stored [in, out], as x @ w is written. Small and sensitive: never quantised. */
  lowRank(name: string): Matrix {
    return this.#lowRank(this.#entry(name))
  }

  /** The low-rank factors of a tensor [n, in, out]. */
  lowRankStack(name: string): readonly Matrix[] {
    return stackedParts(this.#entry(name)).map((part) => this.#lowRank(part))
  }

  /** The n low-rank factors that lie side by side in a tensor [in, n·out]. */
  lowRankColumns(name: string, n: number): readonly Matrix[] {
    return columnParts(this.#entry(name), n).map((part) => this.#lowRank(part))
  }

  table(name: string): Table {
    const { weightType } = this.#options
    const entry = this.#entry(name)
    // Rounding leaves a table as the file has it.
    const keepsBlocks = weightType === undefined || isRounded(weightType)
    const source = keepsBlocks ? matrixSource(entry) : unpackedSource(entry)
    const isHalved = heldType(entry) !== entry.dtype && weightType !== 'f32'
    return this.#counted(entry, this.#backend.table(isHalved ? halvedSource(source) : source))
  }

  /** A table that stays in the host's memory, as the file has it. */
  hostTable(name: string): HostTable {
    const entry = this.#entry(name)
    const table = this.#backend.hostTable(unpackedSource(entry))
    this.#count(entry, 0)
    return table
  }

  #entry(name: string): TensorEntry {
    const entry = this.#checkpoint.tensors.get(name)
    if (!entry) throw new SkeinError('unsupported_weights', `${this.#checkpoint.path} has no tensor ${name}`)
    return entry
  }

  #lowRank(entry: TensorEntry): Matrix {
    const source = transposedSource(entry)
    return this.#counted(entry, this.#backend.matrix(source, this.#plainType(entry)))
  }

  #plainType(entry: TensorEntry): WeightType {
    const wanted = this.#options.weightType
    return wanted === undefined || isRounded(wanted) ? entry.dtype : wanted
  }

  #counted<T extends { readonly bytes: number }>(entry: TensorEntry, held: T): T {
    this.#count(entry, held.bytes)
    return held
  }

  #count(entry: TensorEntry, deviceBytes: number): void {
    this.#doneBytes += byteLength(entry)
    this.#deviceBytes += deviceBytes
    this.#options.onProgress?.(this.#doneBytes, this.#totalBytes)
  }
}

function byteLength(entry: TensorEntry): number {
  return numElements(entry) * BYTES_PER_ELEMENT[entry.dtype]
}

/** The matrices of a tensor [n, rows, columns]. */
function stackedParts(entry: TensorEntry): TensorEntry[] {
  const { name, shape } = entry
  if (shape.length !== 3) throw misshapen(entry, 'a stack of matrices')
  return Array.from({ length: shape[0]! }, (_, i) => sliced(entry, `${name}[${i}]`, i))
}

/** The n matrices [rows, columns/n] of a tensor [rows, columns]. */
function columnParts(entry: TensorEntry, n: number): TensorEntry[] {
  const [rows = 0, columns = 0] = entry.shape
  if (entry.shape.length !== 2 || columns % n !== 0) throw misshapen(entry, `${n} matrices side by side`)
  const width = columns / n
  const size = BYTES_PER_ELEMENT[entry.dtype]
  return Array.from({ length: n }, (_, i) => ({
    name: `${entry.name}[:, ${i * width}:]`,
    shape: [rows, width],
    dtype: entry.dtype,
    read: (start, end) => readColumns(entry, i * width, width).subarray(start * size, end * size),
  }))
}

/** A copy: low-rank factors are small. */
function readColumns(entry: TensorEntry, first: number, width: number) {
  const size = BYTES_PER_ELEMENT[entry.dtype]
  const [rows, columns] = [entry.shape[0]!, entry.shape[1]!]
  const whole = entry.read(0, rows * columns)
  const part = new Uint8Array(rows * width * size)
  for (let row = 0; row < rows; row++) {
    const from = (row * columns + first) * size
    part.set(whole.subarray(from, from + width * size), row * width * size)
  }
  return part
}

function misshapen(entry: TensorEntry, expected: string): SkeinError {
  const message = `${entry.name} has shape [${entry.shape.join(', ')}]; ${expected} was expected`
  return new SkeinError('unsupported_weights', message)
}

/** The large matrices of RWKV-6 and RWKV-7: what WeightLoader.matrix loads. */
const LARGE_MATRIX =
  /^(head|blocks\.\d+\.(att\.(receptance|key|value|gate|output)|ffn\.(receptance|key|value)))\.weight$/

/**
 * The type a scheme rounds a tensor to; null for those it leaves alone: norms, mixes, low-rank factors, the embedding.
 * The head has integers of 8 bits under every scheme: its errors go into the logits undamped, and it is read once a
 * token, not once a layer.
 */
export function quantisedType<Scheme extends RoundedType>(name: string, scheme: Scheme): Scheme | 'i8' | null {
  if (!LARGE_MATRIX.test(name)) return null
  return name === 'head.weight' ? 'i8' : scheme
}

/** The same where the wanted type may be a plain one. */
function heldMatrixType(name: string, wanted: WeightType): WeightType {
  return isRounded(wanted) ? (quantisedType(name, wanted) ?? wanted) : wanted
}
