/**
 * linear and logits on cuda. Up to 8 tokens: one launch of linear-few.cu for all jobs. Beyond: cuBLASLt for each product,
 * then one launch for the biases and epilogues that the library has not.
 */
import { assert } from '../../errors.ts'
import type { Capacity, Epilogue, LinearJob, Matrix, Tensor } from '../backend.ts'
import type { Command, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import { bucketOf, type Gemm, type GemmCall } from './gemm.ts'
import type { DevicePointer } from './kernel-args.ts'
import { anyTensorOf, matrixOf, tensorOf } from './operands.ts'
import type { CudaTensor } from './resources.ts'
import { StructBytes } from './struct-bytes.ts'

/** Values of enum Epilogue in epilogue.cuh. */
const EPILOGUES: Readonly<Record<Epilogue, number>> = {
  none: 0,
  tanh: 1,
  sigmoid: 2,
  relu2: 3,
  add: 4,
}
/** MAX_JOBS of linear-few.cu and linear-epilogue.cu, and the bytes of their jobs. */
const MAX_JOBS = 8
const FEW_JOB_BYTES = 56
const EPILOGUE_JOB_BYTES = 24
/** Tokens that one launch of linear-few.cu multiplies. */
export const FEW_TOKENS = 8
const WARPS = 8
const TILE_ROWS = 16
/** Columns a warp takes at a time; with fewer than two of them to a warp, splitting a row gains nothing. */
const RUN_COLUMNS = 64
const EPILOGUE_BLOCKS = 1024

/** A checked job. */
export interface Product {
  readonly y: CudaTensor
  readonly x: DevicePointer
  readonly weight: DevicePointer
  readonly bias: DevicePointer | null
  readonly rows: number
  readonly columns: number
  readonly epilogue: Epilogue
}

export interface LinearCommand extends Command {
  readonly products: readonly Product[]
  /** Leaves the bias and sigmoid of these products to their reader, in steps of more than FEW_TOKENS tokens. */
  absorb(products: readonly Product[]): void
}

function productOf({ y, x, weight, bias, epilogue = 'none' }: LinearJob, tokens: number): Product {
  const { address, rows, columns } = matrixOf(weight)
  return {
    y: anyTensorOf(y, tokens * rows),
    x: tensorOf(x, 'f16', tokens * columns),
    weight: address,
    bias: bias ? tensorOf(bias, 'f32', rows) : null,
    rows,
    columns,
    epilogue,
  }
}

export function linear(
  device: CudaDevice,
  capacity: Capacity,
  jobs: readonly LinearJob[],
): LinearCommand {
  assert(jobs.length > 0 && jobs.length <= MAX_JOBS, `linear with ${jobs.length} jobs`)
  const products = jobs.map((job) => productOf(job, capacity.tokens))
  const few = fewProducts(device, products, 0)
  const many = manyProducts(device, products, capacity.tokens)
  return {
    products,
    absorb: many.absorb,
    prepare: (gemm, { tokens }) => {
      if (tokens > FEW_TOKENS) many.prepare(gemm, tokens)
    },
    run(stream, { tokens }) {
      if (tokens <= FEW_TOKENS) few(stream)
      else many.run(stream, tokens)
    },
  }
}

export function logits(
  device: CudaDevice,
  capacity: Capacity,
  y: Tensor,
  x: Tensor,
  weight: Matrix,
): Command {
  const products = [productOf({ y, x, weight }, capacity.logits)]
  const few = fewProducts(device, products, 2)
  const many = manyProducts(device, products, capacity.logits)
  return {
    prepare: (gemm, { logits: rows }) => {
      if (rows > FEW_TOKENS) many.prepare(gemm, rows)
    },
    run(stream, { logits: rows }) {
      if (rows === 0) return
      if (rows <= FEW_TOKENS) few(stream)
      else many.run(stream, rows)
    },
  }
}

/** Warps that share a row: enough to fill the device, each with work for its loads. */
function splitOf(columns: number): number {
  const runs = Math.ceil(columns / RUN_COLUMNS)
  return [8, 4, 2].find((split) => runs >= 2 * split) ?? 1
}

/** `LinearJobs` of linear-few.cu, and the blocks of all jobs. */
function fewStruct(products: readonly Product[], countIndex: number): [Uint8Array, number] {
  const struct = new StructBytes()
  let blocks = 0
  for (const [j, { y, x, weight, bias, rows, columns, epilogue }] of products.entries()) {
    const split = splitOf(columns)
    struct.padTo(j * FEW_JOB_BYTES)
    struct.pointer(y.address).pointer(x).pointer(weight).pointer(bias)
    struct
      .i32(rows)
      .i32(columns)
      .i32(EPILOGUES[epilogue])
      .i32(Number(y.type === 'f32'))
    struct.i32(blocks).i32(split)
    blocks += Math.ceil(rows / ((TILE_ROWS * WARPS) / split))
  }
  struct
    .padTo(MAX_JOBS * FEW_JOB_BYTES)
    .i32(products.length)
    .i32(countIndex)
  return [struct.bytes(), blocks]
}

function fewProducts(device: CudaDevice, products: readonly Product[], countIndex: number) {
  const kernel = device.kernel('linear-few', 'linear_few')
  const [struct, blocks] = fewStruct(products, countIndex)
  const site = {}
  return (stream: StepStream) =>
    stream.launch(site, kernel, [blocks, 1, 1], 32 * WARPS, () => [struct])
}

/** The tokens a library product is made for: those of its tuned plan, as far as the tensors reach. */
function paddedTokens(tokens: number, capacity: number): number {
  return Math.min(bucketOf(tokens), capacity)
}

function gemmCall(product: Product, n: number): GemmCall {
  const { rows, columns, weight, x, y, epilogue } = product
  const beta = epilogue === 'add' ? 1 : 0
  return { m: rows, n, k: columns, w: weight, x, y: y.address, outType: y.type, beta }
}

function manyProducts(device: CudaDevice, products: readonly Product[], capacity: number) {
  const kernel = device.kernel('linear-epilogue', 'linear_epilogue')
  let finished = products.filter(({ bias, epilogue }) => bias || !isPlain(epilogue))
  for (const { y, bias, epilogue } of finished)
    assert(
      y.type === 'f16' && !(bias && epilogue === 'add'),
      'a bias or activation of a product that is f32 or added to another',
    )
  const site = {}
  return {
    absorb(absorbed: readonly Product[]): void {
      finished = finished.filter((product) => !absorbed.includes(product))
    },
    prepare(gemm: Gemm, tokens: number): void {
      const n = paddedTokens(tokens, capacity)
      for (const product of products) gemm.prepare(gemmCall(product, n))
    },
    run(stream: StepStream, tokens: number): void {
      const n = paddedTokens(tokens, capacity)
      for (const product of products) stream.gemm.run(gemmCall(product, n))
      const widest = Math.max(0, ...finished.map(({ rows }) => rows))
      const blocks = Math.min(EPILOGUE_BLOCKS, Math.ceil((tokens * widest) / (8 * 256)))
      const grid = [blocks, finished.length, 1] as const
      stream.launch(site, kernel, grid, 256, () => [epilogueStruct(finished)])
    },
  }
}

/** Nothing to do after the library's product. */
function isPlain(epilogue: Epilogue): boolean {
  return epilogue === 'none' || epilogue === 'add'
}

/** `EpilogueJobs` of linear-epilogue.cu. */
function epilogueStruct(products: readonly Product[]): Uint8Array {
  const struct = new StructBytes()
  for (const [j, { y, bias, rows, epilogue }] of products.entries())
    struct
      .padTo(j * EPILOGUE_JOB_BYTES)
      .pointer(y.address)
      .pointer(bias)
      .i32(rows)
      .i32(EPILOGUES[epilogue])
  return struct.padTo(MAX_JOBS * EPILOGUE_JOB_BYTES).bytes()
}
