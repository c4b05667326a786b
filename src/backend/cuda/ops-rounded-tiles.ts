/**
 * Products of many tokens with matrices of integers on cuda without copies of them: a launch of linear-tiles.cu for all of
 * a type, in tiles and shares of the columns that suit the number of tokens. It stores sums or adds them; biases and
 * activations are left to linear-epilogue.cu. Needs capability 9.0 itself, not a later one.
 */
import type { QuantisedType } from '../backend.ts'
import type { StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import { bucketOf } from './gemm.ts'
import { groupsOf } from './ops-rounded-wide.ts'
import type { Product } from './product.ts'
import { QUANT_CODES } from './rounded-matrix.ts'
import { StructBytes } from './struct-bytes.ts'
import { TENSOR_MAP_BYTES, tensorMapOf } from './tensor-map.ts'

/** MAX_JOBS, the bytes of a job, kThreads and kDepth of linear-tiles.cu. */
const MAX_JOBS = 8
const JOB_BYTES = 48
const THREADS = 256
const DEPTH = 4
/** Rows of W that a pair of blocks has, and of a block's tokens what lies between two in its sums. */
const PAIR_ROWS = 256
const SUM_BYTES = 4 * (128 + 4)
/** Inputs of a stage, and what its two barriers take. */
const STAGE_INPUTS = 64
const BARRIER_BYTES = 16
/** The most tokens for which that is faster than copies: those cost the same for any number (docs/kernels.md). */
const MOST_TOKENS = 1024
/** The only capability whose tensor cores have these instructions. */
const MAJOR = 9

/** A variant of linear-tiles.cu. */
interface Variant {
  readonly tokens: number
  readonly stages: number
  /** Blocks on a multiprocessor. */
  readonly residents: number
}

const VARIANTS: readonly Variant[] = [
  { tokens: 256, stages: 4, residents: 1 },
  { tokens: 128, stages: 4, residents: 2 },
]
const SHARES = [1, 2, 4]
/**
 * Nanoseconds, of a multiprocessor full of blocks: a stage (1024 cycles at the least), the beginning and end of a block,
 * and adding up shares. Counted, not measured.
 */
const STAGE_TIME = 760
const BLOCK_TIME = 4000
const SHARE_TIME = 1500
/**
 * What smaller tiles cost more: twice the decoding, near what four warps of a scheduler can issue. A block alone where
 * there is room for two is not twice as fast.
 */
const SMALL_TILE = 1.2
const ALONE = 0.6

interface Cut {
  readonly variant: Variant
  readonly shares: number
  /** Of the launch, in nanoseconds, as far as can be counted. */
  readonly time: number
}

type Shape = Pick<Product, 'rows' | 'columns'>

/** How products of these shapes are cut for so many tokens. */
export function cutOf(numSms: number, jobs: readonly Shape[], tokens: number): Cut {
  const cuts = VARIANTS.flatMap((variant) =>
    SHARES.map((shares) => ({
      variant,
      shares,
      time: timeOf(numSms, jobs, tokens, variant, shares),
    })),
  )
  return cuts.reduce((best, cut) => (cut.time < best.time ? cut : best))
}

function timeOf(
  numSms: number,
  jobs: readonly Shape[],
  tokens: number,
  { tokens: width, residents }: Variant,
  shares: number,
): number {
  const blocks = 2 * pairsOf(jobs) * Math.ceil(tokens / width) * shares
  const slots = residents * numSms
  const rest = blocks % slots
  const last = rest === 0 ? 0 : rest <= numSms && residents > 1 ? ALONE : 1
  const rounds = Math.floor(blocks / slots) + last
  const stages = Math.max(...jobs.map(({ columns }) => columns)) / STAGE_INPUTS / shares
  const slowness = residents > 1 ? SMALL_TILE : 1
  return rounds * (slowness * stages * STAGE_TIME + BLOCK_TIME + SHARE_TIME * Math.log2(shares))
}

function pairsOf(jobs: readonly Shape[]): number {
  return jobs.reduce((sum, { rows }) => sum + Math.ceil(rows / PAIR_ROWS), 0)
}

/** The most tokens of a product for which this is the way; 0 where the device lacks what it needs. */
export function tiledTokens(device: CudaDevice): number {
  const [major] = device.computeCapability
  const fits = VARIANTS.every(
    (variant) => sharedBytes('q4', variant) <= device.info.sharedBytesPerBlock,
  )
  return major === MAJOR && fits ? MOST_TOKENS : 0
}

/** `Shared` of linear-tiles.cu. */
function sharedBytes(type: QuantisedType, { tokens, stages }: Variant): number {
  const weights = 2 * DEPTH * THREADS * (16 + (type === 'q4' ? 8 : 4))
  const ring = stages * 2 * STAGE_INPUTS * tokens + weights
  return Math.max(ring, SUM_BYTES * tokens) + stages * BARRIER_BYTES
}

interface TiledProducts {
  /** Kernels for so many tokens. */
  prepare(tokens: number): void
  run(stream: StepStream, tokens: number): void
}

/** `capacity`: rows of each x. */
export function tiledProducts(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
): TiledProducts | null {
  const groups = groupsOf(products)
  if (groups.length === 0 || tiledTokens(device) === 0) return null
  const launches = new Map<number, ReturnType<typeof launchOf>[]>()
  const launchesOf = (tokens: number) => {
    const bucket = bucketOf(tokens)
    const made =
      launches.get(bucket) ??
      groups.map(({ type, jobs }) => launchOf(device, type, jobs, countIndex, capacity, bucket))
    launches.set(bucket, made)
    return made
  }
  return {
    prepare: (tokens) => void launchesOf(tokens),
    run(stream, tokens) {
      for (const { site, kernel, grid, args, options } of launchesOf(tokens))
        stream.launch(site, kernel, grid, THREADS, args, options)
    },
  }
}

function launchOf(
  device: CudaDevice,
  type: QuantisedType,
  jobs: readonly Product[],
  countIndex: number,
  capacity: number,
  tokens: number,
) {
  const { variant, shares } = cutOf(device.numSms, jobs, tokens)
  const { tokens: TOKENS, stages: STAGES } = variant
  const defines = { QUANT: QUANT_CODES[type], TOKENS, STAGES }
  const kernel = device.kernel('linear-tiles', 'linear_tiles', defines)
  const tiles = Math.ceil(tokens / TOKENS)
  const cluster = 2 * shares
  return {
    kernel,
    grid: [pairsOf(jobs) * tiles * cluster, 1, 1] as const,
    options: { pdl: true, cluster, sharedBytes: sharedBytes(type, variant) },
    args: () => [
      structOf(jobs, countIndex, tiles, shares),
      mapsOf(device, jobs, capacity, TOKENS / 2),
    ],
    site: {},
  }
}

/** `TileJobs` of linear-tiles.cu. */
function structOf(
  jobs: readonly Product[],
  countIndex: number,
  tiles: number,
  shares: number,
): Uint8Array {
  const struct = new StructBytes()
  let firstPair = 0
  for (const [j, { y, weight, scales, rows, columns, epilogue }] of jobs.entries()) {
    struct
      .padTo(j * JOB_BYTES)
      .pointer(y.address)
      .pointer(weight)
      .pointer(scales)
    struct.i32(rows).i32(columns)
    struct
      .i32(Number(y.type === 'f32'))
      .i32(Number(epilogue === 'add'))
      .i32(firstPair)
    firstPair += Math.ceil(rows / PAIR_ROWS)
  }
  return struct
    .padTo(MAX_JOBS * JOB_BYTES)
    .i32(jobs.length)
    .i32(countIndex)
    .i32(tiles)
    .i32(shares)
    .bytes()
}

/** `InputMaps` of linear-tiles.cu. */
function mapsOf(
  device: CudaDevice,
  jobs: readonly Product[],
  capacity: number,
  boxRows: number,
): Uint8Array {
  const maps = new Uint8Array(MAX_JOBS * TENSOR_MAP_BYTES)
  for (const [j, { x, columns }] of jobs.entries())
    maps.set(tensorMapOf(device, x, capacity, columns, boxRows), j * TENSOR_MAP_BYTES)
  return maps
}
