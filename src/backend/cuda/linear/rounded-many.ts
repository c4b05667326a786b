/**
 * Products of many tokens with matrices of 8 and 4 bits on cuda. As long as that pays rounded-tiles.ts. Else integers: a
 * copy of the matrix in f16 (of a large one, of some rows after others) and the library's product with it. fp8: the inputs
 * rounded likewise, a scale a token, and the library's product of both.
 */
import type { CudaDevice } from '../device/device.ts'
import type { Gemm, GemmCall } from '../gemm/gemm.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import type { Kernel } from '../kernel/kernel.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import { type IntegerLayout, LAYOUTS, rowBytesOf } from '../rounded-matrix.ts'
import type { StepStream } from '../step/command.ts'
import type { Product } from './product.ts'
import { type TileScratch, tiledProducts } from './rounded-tiles.ts'
import type { Scratch } from './scratch.ts'

/** Of the copy in f16: the largest matrix of a layer of 7B is as large. */
const COPY_BYTES = 128 << 20
/** Rows of a copy of a part are a multiple of this: whole tiles of the library's kernels. */
const TILE_ROWS = 256
const THREADS = 256
/** Inputs of a thread of dequantise, at the least. */
const LANE_INPUTS = 16
/** Blocks to a multiprocessor that keep memory busy. */
const BLOCKS_PER_SM = 16
/** Bytes of RoundJob, and MAX_JOBS, of fp8.cu. */
const ROUND_JOB_BYTES = 32
const MAX_JOBS = 8
const ALIGNMENT = 256

/** What a recording holds for these products. */
export interface RoundedScratch extends TileScratch {
  /** The matrix of a product in f16. */
  readonly weights: Scratch
  /** The rounded inputs of all products of a linear, and their scales. */
  readonly inputs: Scratch
  /** Sums in f32, where the library has no scales. */
  readonly sums: Scratch
}

/**
 * Bytes of the f16 copy that products with a matrix need where there are not tiles for all the tokens that a step may have:
 * none where it is not of integers.
 */
export function copyBytes({ type, rows, columns }: Pick<Product, 'type' | 'rows' | 'columns'>) {
  return type === 'f16' || type === 'fp8' ? 0 : 2 * columns * partRows(rows, columns)
}

function partRows(rows: number, columns: number): number {
  const most = Math.max(1, Math.floor(COPY_BYTES / (2 * columns)))
  const parts = Math.ceil(rows / most)
  return Math.min(rows, Math.ceil(rows / parts / TILE_ROWS) * TILE_ROWS)
}

/** Blocks of dequantise (quantise.cu) for so many weights. */
export function dequantiseBlocks(weights: number): number {
  return Math.ceil(weights / (LANE_INPUTS * THREADS))
}

/** `beta`, and where y is. */
function outputOf({ y, rows, epilogue }: Product) {
  const beta: 0 | 1 = epilogue === 'add' ? 1 : 0
  return { y: y.address, outType: y.type, beta, ldy: rows }
}

interface ManyProduct {
  /** Plans of the library's products of n tokens. */
  prepare(gemm: Gemm, n: number): void
  run(stream: StepStream, tokens: number, n: number): void
}

/** The products of a linear with matrices that are not f16. */
interface ManyRounded {
  /** Kernels, and plans of the library's products, which are of n tokens where the step has `tokens`. */
  prepare(gemm: Gemm, tokens: number, n: number): void
  /** `absorbed`: products whose bias and epilogue are left to their reader. */
  run(stream: StepStream, tokens: number, n: number, absorbed: ReadonlySet<Product>): void
  /** Whether `run` adds the product's bias and applies its epilogue. */
  finishes(product: Product, tokens: number): boolean
}

export function roundedMany(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
  scratch: RoundedScratch,
): ManyRounded {
  const ofFp8 = products.filter(({ type }) => type === 'fp8')
  const ofIntegers = products.filter(({ type }) => type !== 'fp8')
  const tiledFp8 = tiledProducts(device, ofFp8, countIndex, capacity, scratch)
  const tiledIntegers = tiledProducts(device, ofIntegers, countIndex, capacity, scratch)
  const tiledFor = ({ type }: Product) => (type === 'f16' ? null : type === 'fp8' ? tiledFp8 : tiledIntegers)
  const inputs = ofFp8.length === 0 ? null : new Fp8Inputs(device, countIndex, capacity, scratch.inputs)
  const made = new Map<Product, ManyProduct>()
  for (const product of products) {
    const { type } = product
    const tiled = tiledFor(product)
    if (type === 'f16' || (tiled !== null && capacity <= tiled.mostTokens)) continue
    if (type === 'fp8') {
      inputs!.add(product)
      made.set(product, fp8Product(device, product, countIndex, capacity, inputs!, scratch.sums))
    } else made.set(product, copied(device, product, type, scratch.weights))
  }
  const isTiled = (product: Product, tokens: number) => tiledFor(product)?.serves(tokens) ?? false
  const others = (tokens: number) => [...made].filter(([product]) => !isTiled(product, tokens))
  const tiledAt = (tokens: number) => [tiledFp8, tiledIntegers].filter((tiled) => tiled?.serves(tokens))
  return {
    prepare(gemm, tokens, n) {
      for (const tiled of tiledAt(tokens)) tiled!.prepare(tokens)
      for (const [, { prepare }] of others(tokens)) prepare(gemm, n)
    },
    run(stream, tokens, n, absorbed) {
      for (const tiled of tiledAt(tokens)) tiled!.run(stream, tokens, absorbed)
      const rest = others(tokens)
      if (rest.some(([{ type }]) => type === 'fp8')) inputs!.round(stream, tokens)
      for (const [, { run }] of rest) run(stream, tokens, n)
    },
    finishes: isTiled,
  }
}

/** A matrix of integers, by way of f16: where there are no tiles for it, or more tokens than they serve. */
function copied(device: CudaDevice, product: Product, type: IntegerLayout, copy: Scratch): ManyProduct {
  const { rows, columns, weight, scales, x } = product
  const { values, scales: scaleBytes } = rowBytesOf(type, columns)
  const defines = { QUANT: LAYOUTS[type].code, SOURCE: 0 }
  const kernel = device.kernel('quantise', 'dequantise', defines)
  const most = partRows(rows, columns)
  copy.reserve(copyBytes(product))
  const { y, outType, beta, ldy } = outputOf(product)
  const elementBytes = outType === 'f32' ? 4 : 2
  const parts = Array.from({ length: Math.ceil(rows / most) }, (_, part) => {
    const first = part * most
    const m = Math.min(most, rows - first)
    const call = (n: number): GemmCall => ({
      ...{ m, n, k: columns, w: copy.address, x, y: y + BigInt(first * elementBytes) },
      ...{ outType, beta, ldy },
    })
    const from = [weight + BigInt(first * values), scales! + BigInt(first * scaleBytes)] as const
    const blocks = dequantiseBlocks(m * columns)
    const grid = [Math.min(blocks, BLOCKS_PER_SM * device.numSms), 1, 1] as const
    return { call, from, m, grid, site: {} }
  })
  return {
    prepare(gemm, n) {
      for (const { call } of parts) gemm.prepare(call(n))
    },
    run(stream, _tokens, n) {
      for (const { call, from, m, grid, site } of parts) {
        const args = () => [copy.address, ...from, i32(m), i32(columns)]
        stream.launch(site, kernel, grid, THREADS, args)
        stream.gemm.run(call(n))
      }
    },
  }
}

/** The inputs of a linear's fp8 products, rounded in one launch. */
class Fp8Inputs {
  readonly #kernel: Kernel
  readonly #countIndex: number
  readonly #capacity: number
  readonly #scratch: Scratch
  readonly #offsets = new Map<Product, { readonly values: number; readonly scales: number }>()
  readonly #site = {}
  #bytes = 0

  constructor(device: CudaDevice, countIndex: number, capacity: number, scratch: Scratch) {
    this.#kernel = device.kernel('fp8', 'round_tokens', { SOURCE: 1 })
    this.#countIndex = countIndex
    this.#capacity = capacity
    this.#scratch = scratch
  }

  add(product: Product): void {
    const values = this.#bytes
    const scales = values + alignUp(this.#capacity * product.columns)
    this.#bytes = scales + alignUp(4 * this.#capacity)
    this.#offsets.set(product, { values, scales })
    this.#scratch.reserve(this.#bytes)
  }

  of(product: Product): { readonly values: DevicePointer; readonly scales: DevicePointer } {
    const { values, scales } = this.#offsets.get(product)!
    const { address } = this.#scratch
    return { values: address + BigInt(values), scales: address + BigInt(scales) }
  }

  round(stream: StepStream, tokens: number): void {
    const grid = [tokens, this.#offsets.size, 1] as const
    stream.launch(this.#site, this.#kernel, grid, THREADS, () => [this.#struct()])
  }

  /** `RoundJobs` of fp8.cu. */
  #struct(): Uint8Array {
    const struct = new StructBytes()
    for (const [j, product] of [...this.#offsets.keys()].entries()) {
      const { values, scales } = this.of(product)
      struct
        .padTo(j * ROUND_JOB_BYTES)
        .pointer(values)
        .pointer(scales)
        .pointer(product.x)
      struct.i64(product.columns)
    }
    return struct
      .padTo(MAX_JOBS * ROUND_JOB_BYTES)
      .i32(this.#countIndex)
      .bytes()
  }
}

function alignUp(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT
}

function fp8Product(
  device: CudaDevice,
  product: Product,
  countIndex: number,
  capacity: number,
  inputs: Fp8Inputs,
  sums: Scratch,
): ManyProduct {
  const { rows, columns, weight, scales } = product
  const output = outputOf(product)
  const kernel = device.kernel('fp8', 'scale_sums', { SOURCE: 1 })
  sums.reserve(4 * capacity * rows)
  const shape = { m: rows, k: columns, inType: 'fp8', w: weight } as const
  const scaled = (n: number): GemmCall => {
    const { values, scales: tokenScales } = inputs.of(product)
    return { ...shape, n, x: values, ...output, scales: { w: scales!, x: tokenScales } }
  }
  const unscaled = (n: number): GemmCall => {
    const { values } = inputs.of(product)
    return { ...shape, n, x: values, y: sums.address, outType: 'f32', beta: 0 }
  }
  const callFor = (gemm: Gemm) => (gemm.scalesRows(output.outType) ? scaled : unscaled)
  const site = {}
  return {
    prepare: (gemm, n) => gemm.prepare(callFor(gemm)(n)),
    run(stream, tokens, n) {
      const call = callFor(stream.gemm)
      stream.gemm.run(call(n))
      if (call === scaled) return
      const blocks = Math.min(BLOCKS_PER_SM * device.numSms, Math.ceil((tokens * rows) / THREADS))
      stream.launch(site, kernel, [blocks, 1, 1], THREADS, () => [
        output.y,
        sums.address,
        scales!,
        inputs.of(product).scales,
        i32(rows),
        i32(countIndex),
        i32(Number(output.outType === 'f32')),
        i32(output.beta),
      ])
    },
  }
}
