/**
 * Products with matrices of few rows on cuda, those that lead into a low rank: all of a linear in one launch of
 * low-rank.cu, in tiles and shares of the columns that suit the number of tokens. Needs capability 9.0.
 */

import type { CudaDevice } from '../device/device.ts'
import { bucketOf } from '../gemm/gemm.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { StepStream } from '../step/command.ts'
import { EPILOGUES, type Product } from './product.ts'

/** MAX_JOBS of low-rank.cu, the bytes of its jobs, its threads, and the columns of a chunk. */
const MAX_JOBS = 8
const JOB_BYTES = 48
const THREADS = 256
const CHUNK_COLUMNS = 64
/** Of a token or a row in a chunk. */
const LINE_BYTES = 128

/** A variant of low-rank.cu. */
interface Tile {
  readonly tokens: number
  readonly rows: number
  /** Chunks in the ring, and blocks on a multiprocessor. */
  readonly stages: number
  readonly blocks: number
}

export const TILES: readonly Tile[] = [
  { tokens: 64, rows: 64, stages: 4, blocks: 3 },
  { tokens: 64, rows: 128, stages: 4, blocks: 2 },
  { tokens: 160, rows: 128, stages: 5, blocks: 1 },
  { tokens: 256, rows: 128, stages: 4, blocks: 1 },
]
/** Powers of two, since clusters of other sizes leave multiprocessors of a GPC idle; at most MAX_SPLITS of low-rank.cu. */
const SPLITS = [1, 2, 4, 8]
/**
 * Fitted to the times of an H200 (docs/dev/kernels.md), in nanoseconds: the least for a chunk, an output of it at the tensor
 * cores, the beginning and end of a block, and what each halving of the columns adds to that. Bytes a nanosecond that a
 * multiprocessor reads from L2 and from its neighbours.
 */
const CHUNK_TIME = 375
const OUTPUT_TIME = 0.028
const BLOCK_TIME = 2000
const HALVING_TIME = 600
const L2_BYTES = 80
const CLUSTER_BYTES = 100

/** How many blocks share the columns of a tile. */
export interface Cut {
  readonly tile: Tile
  readonly splits: number
}

export type LowRankProducts = (stream: StepStream, tokens: number) => void

/** Whether low-rank.cu can make a product of f16; up to how many rows that pays, the caller knows. */
export function isLowRank(device: CudaDevice, { y, epilogue }: Product): boolean {
  return device.computeCapability[0] >= 9 && y.type === 'f16' && epilogue !== 'add'
}

/** `choose` decides for a bucket of tokens, so that a step is the same from a graph and without. */
export function lowRank(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  choose = (bucket: number) => cutFor(device, products, bucket),
): LowRankProducts {
  const kernels = new Map(tilesOn(device).map((tile) => [tile, kernelOf(device, tile)]))
  const launchOf = (bucket: number) => {
    const { tile, splits } = choose(bucket)
    return {
      site: {},
      tile,
      kernel: kernels.get(tile)!,
      blocks: splits * rowTilesOf(products, tile),
      args: () => [structOf(products, countIndex, tile, splits)],
      options: { pdl: true, cluster: splits, sharedBytes: sharedBytesOf(tile) },
    }
  }
  const launches = new Map<number, ReturnType<typeof launchOf>>()
  return (stream, tokens) => {
    const bucket = bucketOf(tokens)
    const launch = launches.get(bucket) ?? launchOf(bucket)
    launches.set(bucket, launch)
    const { site, tile, kernel, blocks, args, options } = launch
    const grid = [blocks, Math.ceil(tokens / tile.tokens), 1] as const
    stream.launch(site, kernel, grid, THREADS, args, options)
  }
}

/** The fastest of all tiles and splits, as far as a few numbers can tell. */
function cutFor(device: CudaDevice, products: readonly Product[], tokens: number): Cut {
  const chunks = Math.max(...products.map(chunksOf))
  const cuts = tilesOn(device).flatMap((tile) =>
    SPLITS.filter((splits) => splits <= chunks).map((splits) => ({ tile, splits })),
  )
  const times = cuts.map((cut) => timeOf(device, products, tokens, cut))
  return cuts[times.indexOf(Math.min(...times))]!
}

function timeOf({ numSms }: CudaDevice, products: readonly Product[], tokens: number, { tile, splits }: Cut): number {
  const tokenTiles = Math.ceil(tokens / tile.tokens)
  const blocksOfSm = Math.ceil((tokenTiles * rowTilesOf(products, tile) * splits) / numSms)
  const rounds = Math.ceil(blocksOfSm / tile.blocks)
  const outputs = blocksOfSm * tile.tokens * tile.rows
  const chunks = Math.ceil(Math.max(...products.map(chunksOf)) / splits)
  const read = products.reduce(
    (sum, { rows, columns }) => sum + 2 * columns * (tokens * Math.ceil(rows / tile.rows) + rows * tokenTiles),
    0,
  )
  return (
    chunks * Math.max(CHUNK_TIME, outputs * OUTPUT_TIME) +
    rounds * (BLOCK_TIME + HALVING_TIME * Math.log2(splits)) +
    read / (L2_BYTES * numSms) +
    (4 * outputs * (1 - 1 / splits)) / CLUSTER_BYTES
  )
}

function chunksOf({ columns }: Product): number {
  return Math.ceil(columns / CHUNK_COLUMNS)
}

function rowTilesOf(products: readonly Product[], tile: Tile): number {
  return products.reduce((sum, { rows }) => sum + Math.ceil(rows / tile.rows), 0)
}

function sharedBytesOf({ tokens, rows, stages }: Tile): number {
  return stages * (tokens + rows) * LINE_BYTES
}

function tilesOn({ info }: CudaDevice): readonly Tile[] {
  return TILES.filter((tile) => sharedBytesOf(tile) <= info.sharedBytesPerBlock)
}

function kernelOf(device: CudaDevice, { tokens, rows, stages, blocks }: Tile) {
  const defines = { TOKENS: tokens, ROWS: rows, STAGES: stages, BLOCKS: blocks }
  return device.kernel('low-rank', 'low_rank', defines)
}

/** `LowRankJobs` of low-rank.cu. */
function structOf(products: readonly Product[], countIndex: number, tile: Tile, splits: number) {
  const struct = new StructBytes()
  let tiles = 0
  for (const [j, { y, x, weight, bias, rows, columns, epilogue }] of products.entries()) {
    struct
      .padTo(j * JOB_BYTES)
      .pointer(y.address)
      .pointer(x)
      .pointer(weight)
      .pointer(bias)
    struct.i32(rows).i32(columns).i32(EPILOGUES[epilogue]).i32(tiles)
    tiles += Math.ceil(rows / tile.rows)
  }
  struct
    .padTo(MAX_JOBS * JOB_BYTES)
    .i32(products.length)
    .i32(countIndex)
    .i32(splits)
  return struct.bytes()
}
