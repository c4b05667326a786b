/**
 * linear and logits on cuda. Few tokens: one launch of linear-few.cu for all jobs. More: one of low-rank.cu for the small
 * matrices (before capability 9.0 of linear-few.cu) as long as that is faster, cuBLASLt for each other product, then one
 * launch for the biases and epilogues that the library has not. Matrices of fewer bits than f16 have ops-rounded-few.ts
 * and ops-rounded-many.ts in their place.
 */
import { assert } from '../../../errors.ts'
import type { Epilogue, LinearJob, Matrix, Tensor } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import { bucketOf, type Gemm, type GemmCall } from '../gemm/gemm.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { Command, StepStream } from '../step/command.ts'
import { type HalvesShared, halvesOf } from './halves.ts'
import { isLowRank, type LowRankProducts, lowRank } from './low-rank.ts'
import { EPILOGUES, type Product, productOf } from './product.ts'
import { fewRoundedTokens, roundedFew } from './rounded-few.ts'
import { type RoundedScratch, roundedMany } from './rounded-many.ts'
import { type CopyBudget, sparseProduct } from './sparse.ts'

/** MAX_JOBS of linear-few.cu and linear-epilogue.cu, and the bytes of their jobs. */
const MAX_JOBS = 8
const FEW_JOB_BYTES = 56
const EPILOGUE_JOB_BYTES = 24
/** Values of TOKENS that linear-few.cu is compiled for. */
const FEW_SIZES = [8, 16, 32] as const
/** The most tokens for which it is faster than the library, for one matrix and for several at once (docs/dev/kernels.md). */
const FEW_TOKENS_ALONE = 16
const FEW_TOKENS_TOGETHER = 32
/** Rows of factors that lead into a low rank, and the tokens up to which low-rank.cu and linear-few.cu beat the library. */
const SMALL_ROWS = 512
const LOW_RANK_TOKENS = 2048
const SMALL_TOKENS = 384
const SMALL_BLOCK_TOKENS = 32
const SMALL_ROW_TILES = 4
const WARPS = 8
/** Columns a warp takes at a time. */
const RUN_COLUMNS = 64
/** Rows that a warp takes at a time are 8 times this: more where there are enough rows to fill the device anyway. */
function rowTilesOf(products: readonly Product[], tokens: number): number {
  const groups = products.reduce((sum, { rows }) => sum + Math.ceil(rows / 8), 0)
  if (groups <= 600) return 1
  return groups <= 1200 || tokens > 8 ? 2 : 4
}

const EPILOGUE_BLOCKS = 1024

/** What the products of a recording share. */
export interface LinearShared extends HalvesShared {
  readonly rounded: RoundedScratch
  /** For transposed copies. */
  readonly copies: CopyBudget
}

export interface LinearCommand extends Command {
  readonly products: readonly Product[]
  /** The matrix of a product after relu² as [columns, rows], where there is such a copy. */
  readonly transposed: DevicePointer | null
  /** Leaves the bias and sigmoid of those of these products that can do so to their reader; returns which. */
  absorb(products: readonly Product[]): readonly Product[]
  /** Whether a step of so many tokens leaves what was absorbed. */
  leaves(tokens: number): boolean
}

export function linear(
  device: CudaDevice,
  capacity: Capacity,
  jobs: readonly LinearJob[],
  before: readonly Product[],
  shared: LinearShared,
): LinearCommand {
  assert(jobs.length > 0 && jobs.length <= MAX_JOBS, `linear with ${jobs.length} jobs`)
  const products = jobs.map((job) => productOf(job, capacity.tokens))
  const limit = fewTokens(device, products)
  const few = fewProducts(device, products, 0)
  const many = manyOrHalves(device, products, 0, capacity.tokens, shared)
  const sparse = products.length === 1 ? sparseProduct(device, products[0]!, before, shared.copies) : null
  return {
    products,
    transposed: sparse?.transposed ?? null,
    absorb: many.absorb,
    leaves: (tokens) => tokens > limit,
    prepare: (gemm, { tokens }) => {
      if (tokens > limit) many.prepare(gemm, tokens)
    },
    run(stream, { tokens }) {
      if (tokens === 1 && sparse !== null) sparse.run(stream)
      else if (tokens <= limit) few(stream, tokens)
      else many.run(stream, tokens)
    },
    dispose() {
      sparse?.dispose()
      many.dispose()
    },
  }
}

export function logits(
  device: CudaDevice,
  capacity: Capacity,
  y: Tensor,
  x: Tensor,
  weight: Matrix,
  shared: LinearShared,
): Command {
  const products = [productOf({ y, x, weight }, capacity.logits)]
  const limit = fewTokens(device, products)
  const few = fewProducts(device, products, 2)
  const many = manyOrHalves(device, products, 2, capacity.logits, shared)
  return {
    dispose: many.dispose,
    prepare: (gemm, { logits: rows }) => {
      if (rows > limit) many.prepare(gemm, rows)
    },
    run(stream, { logits: rows }) {
      if (rows === 0) return
      if (rows <= limit) few(stream, rows)
      else many.run(stream, rows)
    },
  }
}

/** Warps that share a row: as many as have a run each. */
function splitOf(columns: number): number {
  const runs = Math.ceil(columns / RUN_COLUMNS)
  return [8, 4, 2].find((split) => runs >= split) ?? 1
}

/** `LinearJobs` of linear-few.cu, and the blocks of all jobs. */
function fewStruct(products: readonly Product[], countIndex: number, rowTiles: number): [Uint8Array, number] {
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
    blocks += Math.ceil(rows / ((8 * rowTiles * WARPS) / split))
  }
  struct
    .padTo(MAX_JOBS * FEW_JOB_BYTES)
    .i32(products.length)
    .i32(countIndex)
  return [struct.bytes(), blocks]
}

function fewProducts(device: CudaDevice, products: readonly Product[], countIndex: number) {
  if (products.some(isRounded)) return roundedFew(device, products, countIndex)
  const variants = FEW_SIZES.filter((size) => size <= fewTokens(device, products)).map((size) => {
    const ROW_TILES = rowTilesOf(products, size)
    const kernel = device.kernel('linear-few', 'linear_few', { TOKENS: size, ROW_TILES })
    const [struct, blocks] = fewStruct(products, countIndex, ROW_TILES)
    return { size, kernel, struct, blocks, site: {} }
  })
  return (stream: StepStream, tokens: number) => {
    const variant = variants.find(({ size }) => tokens <= size)
    assert(variant !== undefined, `${tokens} tokens in one pass over the weights`)
    const { site, kernel, struct, blocks } = variant
    stream.launch(site, kernel, [blocks, 1, 1], 32 * WARPS, () => [struct])
  }
}

/** The tokens a library product is made for: those that its step is padded to, as far as the tensors reach. */
function paddedTokens(tokens: number, capacity: number): number {
  return Math.min(bucketOf(tokens), capacity)
}

function isRounded({ type }: Product): boolean {
  return type !== 'f16'
}

/** The most tokens for which one kernel reads every matrix itself. */
function fewTokens(device: CudaDevice, products: readonly Product[]): number {
  if (products.some(isRounded)) return fewRoundedTokens(device, products)
  return products.length === 1 ? FEW_TOKENS_ALONE : FEW_TOKENS_TOGETHER
}

/** Small products of a linear that are one launch, up to so many tokens. */
interface SmallProducts {
  readonly products: readonly Product[]
  readonly limit: number
  readonly run: LowRankProducts
}

function smallProducts(device: CudaDevice, all: readonly Product[], countIndex: number): SmallProducts {
  // linear-few.cu reads f16 alone.
  const small = all.filter(({ rows, type }) => rows <= SMALL_ROWS && type === 'f16')
  // Most linears have none, and then need no kernel for them.
  if (small.length === 0) return { products: [], limit: 0, run: () => {} }
  const low = small.filter((product) => isLowRank(device, product))
  if (low.length > 0) return { products: low, limit: LOW_RANK_TOKENS, run: lowRank(device, low, countIndex) }
  const [TOKENS, ROW_TILES] = [SMALL_BLOCK_TOKENS, SMALL_ROW_TILES]
  const kernel = device.kernel('linear-few', 'linear_few', { TOKENS, ROW_TILES })
  const [struct, blocks] = fewStruct(small, countIndex, ROW_TILES)
  const site = {}
  return {
    products: small,
    limit: SMALL_TOKENS,
    run: (stream, tokens) =>
      stream.launch(site, kernel, [blocks, Math.ceil(tokens / TOKENS), 1], 32 * WARPS, () => [struct]),
  }
}

/** By copies in f16 where there are some and they are faster. */
function manyOrHalves(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
  shared: LinearShared,
) {
  const { rounded } = shared
  const own = manyProducts(device, products, countIndex, capacity, rounded)
  const copies = halvesOf(device, products, capacity, shared)
  if (copies === null) return { ...own, dispose: () => {} }
  const halved = manyProducts(device, copies.products, countIndex, capacity, rounded)
  const wayFor = (tokens: number) => (copies.serves(tokens) ? halved : own)
  return {
    absorb(wanted: readonly Product[]): readonly Product[] {
      halved.absorb(wanted.map((product) => copies.products[products.indexOf(product)]!))
      return own.absorb(wanted)
    },
    prepare: (gemm: Gemm, tokens: number) => wayFor(tokens).prepare(gemm, tokens),
    run: (stream: StepStream, tokens: number) => wayFor(tokens).run(stream, tokens),
    dispose: copies.dispose,
  }
}

function manyProducts(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
  scratch: RoundedScratch,
) {
  const kernel = device.kernel('linear-epilogue', 'linear_epilogue')
  const rounded = roundedMany(device, products, countIndex, capacity, scratch)
  const small = smallProducts(device, products, countIndex)
  const absorbed = new Set<Product>()
  const byLibrary = (tokens: number) =>
    tokens <= small.limit ? products.filter((product) => !small.products.includes(product)) : products
  const finished = (tokens: number) =>
    byLibrary(tokens).filter(
      (product) =>
        !absorbed.has(product) && !rounded.finishes(product, tokens) && (product.bias || !isPlain(product.epilogue)),
    )
  for (const { y, bias, epilogue } of finished(Number.POSITIVE_INFINITY))
    assert(
      y.type === 'f16' && !(bias && epilogue === 'add'),
      'a bias or activation of a product that is f32 or added to another',
    )
  const halfCalls = (tokens: number, n: number) =>
    gemmCalls(
      byLibrary(tokens).filter((product) => !isRounded(product)),
      n,
    )
  const sites = { some: {}, all: {} }
  return {
    absorb(wanted: readonly Product[]): readonly Product[] {
      const taken = wanted.filter((product) => !small.products.includes(product))
      for (const product of taken) absorbed.add(product)
      return taken
    },
    prepare(gemm: Gemm, tokens: number): void {
      const n = paddedTokens(tokens, capacity)
      rounded.prepare(gemm, tokens, n)
      for (const call of halfCalls(tokens, n)) gemm.prepare(call)
    },
    run(stream: StepStream, tokens: number): void {
      const n = paddedTokens(tokens, capacity)
      if (tokens <= small.limit) small.run(stream, tokens)
      rounded.run(stream, tokens, n, absorbed)
      for (const call of halfCalls(tokens, n)) stream.gemm.run(call)
      const rest = finished(tokens)
      if (rest.length === 0) return
      const widest = Math.max(...rest.map(({ rows }) => rows))
      const blocks = Math.min(EPILOGUE_BLOCKS, Math.ceil((tokens * widest) / (8 * 256)))
      const site = tokens <= small.limit ? sites.some : sites.all
      const grid = [blocks, rest.length, 1] as const
      stream.launch(site, kernel, grid, 256, () => [epilogueStruct(rest)])
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

/** Elements between inputs or outputs: tuning allocates as many. */
const MAX_STRIDE = 2 ** 26

interface Strides {
  readonly w: number
  readonly x: number
  readonly y: number
}

/** The calls that make these f16 products for `n` tokens. */
export function gemmCalls(products: readonly Product[], n: number): GemmCall[] {
  const calls: GemmCall[] = []
  for (let first = 0, next = 0; first < products.length; first = next) {
    const strides = stridesBetween(products[first]!, products[first + 1])
    next = first + 1
    if (strides !== null) while (continues(products, next, strides)) next++
    calls.push(gemmCall(products[first]!, n, next - first, strides))
  }
  return calls
}

function continues(products: readonly Product[], next: number, strides: Strides): boolean {
  const found = stridesBetween(products[next - 1]!, products[next])
  return found !== null && found.w === strides.w && found.x === strides.x && found.y === strides.y
}

/** From one product's operands to the next one's, where the library could make both at once. */
function stridesBetween(one: Product, next: Product | undefined): Strides | null {
  if (next === undefined || next.rows !== one.rows || next.columns !== one.columns) return null
  if (next.y.type !== one.y.type || betaOf(next) !== betaOf(one)) return null
  const size = one.y.type === 'f32' ? 4n : 2n
  const strides = {
    w: Number((next.weight - one.weight) / 2n),
    x: Number((next.x - one.x) / 2n),
    y: Number((next.y.address - one.y.address) / size),
  }
  const isNear = strides.x > 0 && strides.x <= MAX_STRIDE && strides.y <= MAX_STRIDE
  return strides.w > 0 && strides.y > 0 && isNear ? strides : null
}

function betaOf({ epilogue }: Product): 0 | 1 {
  return epilogue === 'add' ? 1 : 0
}

function gemmCall(product: Product, n: number, batch: number, strides: Strides | null): GemmCall {
  const { rows, columns, weight, x, y } = product
  const call = { m: rows, n, k: columns, w: weight, x, y: y.address, outType: y.type }
  const batched = batch > 1 && strides !== null ? { batch, strides } : {}
  return { ...call, beta: betaOf(product), ...batched }
}
