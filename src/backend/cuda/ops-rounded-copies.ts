/**
 * Products of many tokens with matrices of integers on cuda: copies of them in f16, several by one launch, and the
 * library's products with those.
 */
import type { QuantisedType } from '../backend.ts'
import type { StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { Gemm, GemmCall } from './gemm.ts'
import type { Kernel } from './kernel.ts'
import type { DevicePointer } from './kernel-args.ts'
import type { Product } from './product.ts'
import { gemmCalls } from './product-batches.ts'
import { PART_INPUTS, QUANT_CODES, rowBytesOf } from './rounded-matrix.ts'
import type { Scratch } from './scratch.ts'
import { StructBytes } from './struct-bytes.ts'

/** Of copies made at once: the largest matrix of a layer of 7B is as large. */
const COPY_BYTES = 128 << 20
/** Rows of a copy of a part are a multiple of this: whole tiles of the library's kernels. */
const TILE_ROWS = 256
/** MAX_JOBS of dequantise.cu, and the bytes of its jobs. */
const MAX_JOBS = 8
const JOB_BYTES = 40
const THREADS = 256
/** What a thread of dequantise takes at a time: a lane's part of PART_INPUTS. */
const LANES = 4
/** Blocks to a multiprocessor: all at once. */
const BLOCKS_PER_SM = 4

type Matrix = Pick<Product, 'type' | 'rows' | 'columns'>

/** Bytes of the f16 copy that products with a matrix need: none where it is not of integers. */
export function copyBytes({ type, rows, columns }: Matrix): number {
  return type === 'f16' || type === 'fp8' ? 0 : 2 * columns * partRows(rows, columns)
}

/** What a recording takes at the most, over matrices whose copies have so many bytes together. */
export function scratchBytes(copies: number): number {
  return Math.min(COPY_BYTES, copies)
}

function partRows(rows: number, columns: number): number {
  const most = Math.max(1, Math.floor(COPY_BYTES / (2 * columns)))
  const parts = Math.ceil(rows / most)
  return Math.min(rows, Math.ceil(rows / parts / TILE_ROWS) * TILE_ROWS)
}

interface Integers {
  readonly product: Product
  readonly type: QuantisedType
}

/** Some rows of a product's matrix, and where their copy begins. */
interface Copy {
  readonly product: Product
  readonly type: QuantisedType
  readonly first: number
  readonly rows: number
  readonly offset: number
}

/** Copies made by one launch, all of one type. */
class CopyBatch {
  readonly copies: Copy[] = []
  readonly #device: CudaDevice
  readonly #site = {}
  #kernel: Kernel | null = null
  #blocks: readonly number[] | null = null
  #bytes = 0

  constructor(device: CudaDevice) {
    this.#device = device
  }

  /** Adds a copy if the whole stays within `most` bytes. A part of a matrix is alone. */
  take(product: Product, type: QuantisedType, first: number, rows: number, most: number): boolean {
    const bytes = 2 * rows * product.columns
    const [begun] = this.copies
    const isOther = begun !== undefined && (begun.type !== type || !isWhole(begun))
    if (isOther || this.copies.length === MAX_JOBS || this.#bytes + bytes > most) return false
    const defines = { QUANT: QUANT_CODES[type], THREADS }
    this.#kernel ??= this.#device.kernel('dequantise', 'dequantise', defines)
    this.copies.push({ product, type, first, rows, offset: this.#bytes })
    this.#bytes += bytes
    return true
  }

  get bytes(): number {
    return this.#bytes
  }

  run(stream: StepStream, to: DevicePointer): void {
    this.#blocks ??= this.#dealt()
    const blocks = this.#blocks
    const grid = [blocks.reduce((sum, count) => sum + count, 0), 1, 1] as const
    stream.launch(this.#site, this.#kernel!, grid, THREADS, () => [this.#struct(to, blocks)])
  }

  /** Blocks of each copy, by size. */
  #dealt(): number[] {
    const wanted = this.#device.numSms * BLOCKS_PER_SM
    const items = this.copies.map(itemsOf)
    const all = items.reduce((sum, count) => sum + count, 0)
    return items.map((count) =>
      Math.min(Math.ceil(count / THREADS), Math.max(1, Math.round((wanted * count) / all))),
    )
  }

  /** `CopyJobs` of dequantise.cu. */
  #struct(to: DevicePointer, blocks: readonly number[]): Uint8Array {
    const struct = new StructBytes()
    let firstBlock = 0
    for (const [j, copy] of this.copies.entries()) {
      const { weight, scales, columns } = copy.product
      const bytes = rowBytesOf(copy.type, columns)
      struct
        .padTo(j * JOB_BYTES)
        .pointer(to + BigInt(copy.offset))
        .pointer(weight + BigInt(copy.first * bytes.values))
        .pointer(scales! + BigInt(copy.first * bytes.scales))
      struct.i32(columns).i32(itemsOf(copy)).i32(firstBlock).i32(blocks[j]!)
      firstBlock += blocks[j]!
    }
    return struct
      .padTo(MAX_JOBS * JOB_BYTES)
      .i32(this.copies.length)
      .bytes()
  }
}

function isWhole({ product, first, rows }: Copy): boolean {
  return first === 0 && rows === product.rows
}

function itemsOf({ type, rows, product }: Copy): number {
  return rows * LANES * Math.ceil(product.columns / PART_INPUTS[type])
}

/** The library's products with copies that lie at `to`: of whole matrices, or of one's part. */
function callsOf(copies: readonly Copy[], to: DevicePointer, n: number): GemmCall[] {
  const [one] = copies
  if (one === undefined || isWhole(one))
    return gemmCalls(
      copies.map((copy) => ({ ...copy.product, type: 'f16', weight: to + BigInt(copy.offset) })),
      n,
    )
  const { product, first, rows, offset } = one
  const { x, y, columns: k, epilogue } = product
  const at = y.address + BigInt(first * (y.type === 'f32' ? 4 : 2))
  const beta = epilogue === 'add' ? 1 : 0
  const call = { m: rows, n, k, w: to + BigInt(offset), x, y: at, outType: y.type }
  return [{ ...call, beta, ldy: product.rows }]
}

interface CopiedProducts {
  /** Plans of the library's products of n tokens. */
  prepare(gemm: Gemm, n: number): void
  run(stream: StepStream, n: number): void
}

/** The products of a linear whose matrices are of integers. */
export function copiedProducts(
  device: CudaDevice,
  products: readonly Product[],
  scratch: Scratch,
): CopiedProducts {
  const integers = products.flatMap((product) => {
    const { type } = product
    return type === 'f16' || type === 'fp8' ? [] : [{ product, type }]
  })
  const batches = batchesOf(device, integers)
  for (const { bytes } of batches) scratch.reserve(bytes)
  return {
    prepare(gemm, n) {
      for (const { copies } of batches)
        for (const call of callsOf(copies, scratch.address, n)) gemm.prepare(call)
    },
    run(stream, n) {
      for (const batch of batches) {
        batch.run(stream, scratch.address)
        for (const call of callsOf(batch.copies, scratch.address, n)) stream.gemm.run(call)
      }
    },
  }
}

/** As many copies to a launch as fit, of a large matrix some rows after others. */
function batchesOf(device: CudaDevice, integers: readonly Integers[]): CopyBatch[] {
  const batches: CopyBatch[] = []
  for (const { product, type } of integers) {
    const most = partRows(product.rows, product.columns)
    for (let first = 0; first < product.rows; first += most) {
      const rows = Math.min(most, product.rows - first)
      const isPart = rows < product.rows
      if (!isPart && batches.at(-1)?.take(product, type, first, rows, COPY_BYTES)) continue
      const batch = new CopyBatch(device)
      batch.take(product, type, first, rows, Number.POSITIVE_INFINITY)
      batches.push(batch)
    }
  }
  return batches
}
