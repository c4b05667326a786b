/**
 * Products of many tokens with matrices of 8 and 4 bits on cuda. Integers: up to 128 tokens linear-wide.cu, then as long
 * as that pays linear-tiles.cu, beyond copies in f16 (ops-rounded-copies.ts). fp8: the inputs rounded likewise, a scale a
 * token, and the library's product of both.
 */
import type { StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { Gemm, GemmCall } from './gemm.ts'
import type { Kernel } from './kernel.ts'
import { type DevicePointer, i32 } from './kernel-args.ts'
import { copiedProducts } from './ops-rounded-copies.ts'
import { tiledProducts, tiledTokens } from './ops-rounded-tiles.ts'
import { wideProducts, wideTokens } from './ops-rounded-wide.ts'
import type { Product } from './product.ts'
import type { Scratch } from './scratch.ts'
import { StructBytes } from './struct-bytes.ts'

const THREADS = 256
/** Blocks to a multiprocessor that keep memory busy. */
const BLOCKS_PER_SM = 16
/** Bytes of RoundJob, and MAX_JOBS, of fp8.cu. */
const ROUND_JOB_BYTES = 32
const MAX_JOBS = 8
const ALIGNMENT = 256

/** What a recording holds for these products. */
export interface RoundedScratch {
  /** Matrices in f16. */
  readonly weights: Scratch
  /** The rounded inputs of all products of a linear, and their scales. */
  readonly inputs: Scratch
  /** Sums in f32, where the library has no scales. */
  readonly sums: Scratch
}

/** `beta`, and where y is. */
function outputOf({ y, rows, epilogue }: Product) {
  const beta: 0 | 1 = epilogue === 'add' ? 1 : 0
  return { y: y.address, outType: y.type, beta, ldy: rows }
}

interface Fp8Product {
  prepare(gemm: Gemm, n: number): void
  run(stream: StepStream, tokens: number, n: number): void
}

/** The products of a linear with matrices that are not f16. */
export interface ManyRounded {
  /** Plans of the library's products, which are of n tokens where the step has `tokens`. */
  prepare(gemm: Gemm, tokens: number, n: number): void
  run(stream: StepStream, tokens: number, n: number): void
}

export function roundedMany(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
  scratch: RoundedScratch,
): ManyRounded {
  const wide = wideProducts(device, products, countIndex)
  const mostWide = wide === null ? 0 : wideTokens(device)
  const tiled = tiledProducts(device, products, countIndex, capacity)
  const mostTiled = tiled === null ? 0 : tiledTokens(device)
  const copied = copiedProducts(device, products, scratch.weights)
  const rounded = products.filter(({ type }) => type === 'fp8')
  const inputs =
    rounded.length === 0 ? null : new Fp8Inputs(device, countIndex, capacity, scratch.inputs)
  const fp8 = rounded.map((product) => {
    inputs!.add(product)
    return fp8Product(device, product, countIndex, capacity, inputs!, scratch.sums)
  })
  return {
    prepare(gemm, tokens, n) {
      if (tokens > Math.max(mostWide, mostTiled)) copied.prepare(gemm, n)
      else if (tokens > mostWide) tiled?.prepare(tokens)
      for (const product of fp8) product.prepare(gemm, n)
    },
    run(stream, tokens, n) {
      inputs?.round(stream, tokens)
      if (tokens <= mostWide) wide?.run(stream, tokens)
      else if (tokens <= mostTiled) tiled?.run(stream, tokens)
      else copied.run(stream, n)
      for (const product of fp8) product.run(stream, tokens, n)
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
): Fp8Product {
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
