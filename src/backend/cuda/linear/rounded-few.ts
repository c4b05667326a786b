/**
 * Products of few tokens with matrices of 8 and 4 bits on cuda: one launch of linear-quant.cu for all jobs of a linear,
 * those in f16 among them. It reads each matrix once for every 32 tokens.
 */
import { assert } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import { isBlockLayout, LAYOUTS, type Layout } from '../rounded-matrix.ts'
import type { StepStream } from '../step/command.ts'
import { EPILOGUES, type Product } from './product.ts'
import { leastTiledTokens } from './rounded-tiles.ts'

/** MAX_JOBS of linear-quant.cu, the bytes of its jobs, and WARPS. */
const MAX_JOBS = 8
const JOB_BYTES = 80
const WARPS = 8
/** Values of TOKENS that it is compiled for. */
const SIZES = [8, 16, 32] as const
const LARGEST = 32
/** Inputs of a part of a row in f16. */
const PLAIN_PART = 32
/** 1 / SCALE_FACTOR of quant.cuh */
const UNSCALE = 1 / 256
/** Blocks to a multiprocessor below which more warps share a row. */
const WANTED_BLOCKS = 1.5
/** Rows of a matrix beyond which that is worth counting. */
const SMALL_ROWS = 512

/**
 * The most tokens for which this is the way. Beyond, the library's products read the weights once: of fp8 as they are,
 * of integers from a copy in f16 that has to be made first, unless there are tiles for them (ops-rounded-tiles.ts).
 */
export function fewRoundedTokens(device: CudaDevice, products: readonly Product[]): number {
  if (products.some(({ type }) => type === 'fp8')) return LARGEST
  return Math.min(2 * LARGEST, leastTiledTokens(device) - 1)
}

export function roundedFew(device: CudaDevice, products: readonly Product[], countIndex: number) {
  const groups = groupsOf(products)
  const limit = fewRoundedTokens(device, products)
  const variants = SIZES.map((size) => ({
    size,
    launches: groups.map(({ type, jobs }) => ({ ...launchOf(device, type, jobs, countIndex, size), site: {} })),
  }))
  return (stream: StepStream, tokens: number) => {
    assert(tokens <= limit, `${tokens} tokens where ${limit} are few`)
    const { size, launches } = variants.find((one) => tokens <= one.size) ?? variants.at(-1)!
    for (const { site, kernel, struct, blocks } of launches) {
      const grid = [blocks, Math.ceil(tokens / size), 1] as const
      stream.launch(site, kernel, grid, 32 * WARPS, () => [struct])
    }
  }
}

interface Group {
  readonly type: Layout
  readonly jobs: Product[]
}

/** A launch for each type; what is f16 goes with the first. */
function groupsOf(products: readonly Product[]): Group[] {
  const groups: Group[] = []
  for (const product of products) {
    const { type } = product
    if (type === 'f16') continue
    const group = groups.find((one) => one.type === type)
    if (group) group.jobs.push(product)
    else groups.push({ type, jobs: [product] })
  }
  groups[0]!.jobs.push(...products.filter(({ type }) => type === 'f16'))
  return groups
}

function launchOf(
  device: CudaDevice,
  type: Layout,
  jobs: readonly Product[],
  countIndex: number,
  TOKENS: (typeof SIZES)[number],
) {
  const rowTiles = rowTilesOf(jobs)
  const wanted = splitFor(jobs, rowTiles, WANTED_BLOCKS * device.numSms)
  // Tables and minimums in registers leave too few of them for more: nf4 is 7 % slower at 32 tokens.
  const isFull = TOKENS === LARGEST && (type === 'nf4' || isBlockLayout(type))
  const ROW_TILES = isFull ? Math.min(rowTiles, 2) : rowTiles
  const defines = { QUANT: LAYOUTS[type].code, TOKENS, ROW_TILES }
  const kernel = device.kernel('linear-quant', 'linear_quant', defines)
  const struct = new StructBytes()
  let blocks = 0
  for (const [j, job] of jobs.entries()) {
    const split = Math.min(mostSplit(job), job.rows <= SMALL_ROWS ? WARPS : wanted)
    struct.padTo(j * JOB_BYTES)
    writeJob(struct, job, blocks, split)
    blocks += Math.ceil(job.rows / ((8 * ROW_TILES * WARPS) / split))
  }
  struct
    .padTo(MAX_JOBS * JOB_BYTES)
    .i32(jobs.length)
    .i32(countIndex)
  return { kernel, struct: struct.bytes(), blocks }
}

/** `QuantJob` of linear-quant.cu. */
function writeJob(struct: StructBytes, job: Product, firstBlock: number, split: number): void {
  const { y, x, weight, scales, type, bias, rows, columns, epilogue } = job
  const isFp8 = type === 'fp8'
  struct.pointer(y.address).pointer(x).pointer(weight)
  struct
    .pointer(isFp8 ? null : scales)
    .pointer(isFp8 ? scales : null)
    .pointer(bias)
  struct.i32(rows).i32(columns).i32(EPILOGUES[epilogue])
  struct
    .i32(Number(y.type === 'f32'))
    .i32(firstBlock)
    .i32(split)
  struct.i32(Number(type === 'f16')).f32(type === 'f16' ? 1 : UNSCALE)
}

/** Rows that a warp takes at a time are 8 times this: more where there are enough rows to fill the device anyway. */
function rowTilesOf(jobs: readonly Product[]): 1 | 2 | 4 {
  const groups = jobs.reduce((sum, { rows }) => sum + Math.ceil(rows / 8), 0)
  if (groups <= 400) return 1
  return groups <= 1500 ? 2 : 4
}

/**
 * The fewest warps to a row that still make enough blocks: the inputs are read anew by each. It does not depend on the
 * number of tokens, so that an output is summed in one order.
 */
function splitFor(jobs: readonly Product[], rowTiles: number, blocks: number): number {
  const blocksOf = (split: number) =>
    jobs.reduce((sum, { rows }) => sum + Math.ceil(rows / ((8 * rowTiles * WARPS) / split)), 0)
  return [1, 2, 4].find((split) => blocksOf(split) >= blocks) ?? WARPS
}

/** Warps that can share a row: as many as have a part each. */
function mostSplit({ type, columns }: Product): number {
  const parts = Math.ceil(columns / (type === 'f16' ? PLAIN_PART : LAYOUTS[type].partInputs))
  return [8, 4, 2].find((split) => parts >= split) ?? 1
}
