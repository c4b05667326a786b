/**
 * Products of many tokens with matrices of 8 bits and fewer on cuda without copies of them: a launch of linear-tiles.cu for all of
 * a type, in tiles and shares of the columns that suit the number of tokens. Needs capability 9.0 itself, not a later one.
 */
import { assert } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import { bucketOf } from '../gemm/gemm.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import { LANES_BYTES, LAYOUTS, type Layout, rowBytesOf } from '../rounded-matrix.ts'
import type { StepStream } from '../step/command.ts'
import { EPILOGUES, type Product } from './product.ts'
import type { Scratch } from './scratch.ts'

/** MAX_JOBS, the bytes of a job, kLoading and kBoxInputs of linear-tiles.cu. */
const MAX_JOBS = 8
const JOB_BYTES = 48
const LOADING_THREADS = 128
const BOX_INPUTS = 64
/** Of a warpgroup, and the rows that it multiplies at once. */
const WARPGROUP_THREADS = 128
const UNIT_ROWS = 64
/** Rows between those of a token's sums and the next token's, and bytes of a stage's two barriers. */
const PADDING_ROWS = 4
const BARRIER_BYTES = 16
/** Of a part of e4m3, which has none: the least size of `Scales`. */
const UNUSED_SCALES = 4
/** Of a tile's two counters of sums. */
const COUNTER_BYTES = 8
/** A tile of a block: so many tokens, by the rows of WARPGROUPS that multiply with UNITS of 64 rows each. */
interface Size {
  readonly tokens: number
  readonly warpgroups: 2 | 3
  readonly units: 1 | 2
  /** Nanoseconds of a block before its first inputs and after the last, measured on an H200. */
  readonly blockTime: number
}

const SIZES: readonly Size[] = [
  { tokens: 64, warpgroups: 2, units: 1, blockTime: 6_500 },
  { tokens: 128, warpgroups: 2, units: 1, blockTime: 6_000 },
  { tokens: 160, warpgroups: 2, units: 1, blockTime: 7_000 },
  { tokens: 256, warpgroups: 2, units: 1, blockTime: 9_000 },
  { tokens: 128, warpgroups: 3, units: 1, blockTime: 7_000 },
  { tokens: 160, warpgroups: 3, units: 1, blockTime: 9_000 },
  { tokens: 160, warpgroups: 2, units: 2, blockTime: 10_500 },
]
const LARGEST_TILE = Math.max(...SIZES.map((size) => size.tokens * rowsOf(size)))
/** Nanoseconds of 64 inputs, for each of SIZES, measured likewise; of GGUF's blocks those of q4. */
const Q4_TIMES = [270, 335, 380, 560, 450, 540, 740] as const
type Times = readonly [number, number, number, number, number, number, number]
const INPUT_TIMES: Readonly<Record<Layout, Times>> = {
  i8: [340, 460, 490, 575, 535, 575, 755],
  fp8: [310, 350, 400, 565, 450, 545, 740],
  q4: Q4_TIMES,
  nf4: [360, 430, 470, 565, 610, 655, 880],
  q4Minimum: Q4_TIMES,
  q5Minimum: Q4_TIMES,
  q5: Q4_TIMES,
  q6: Q4_TIMES,
}
/** The most inputs of a stage of the ring. */
const STAGE_INPUTS = 128
/** More stages of the ring bring nothing. */
const MAX_STAGES = 10
/** Pairs of blocks that share a tile's columns, and nanoseconds for a thousand of a block's sums to bring theirs together. */
const SHARES = [1, 2, 3, 4] as const
const SHARE_TIME = 200
/** Waves of blocks that have memory for their sums. */
const SHARED_WAVES = 2
/** The tokens for which that is faster than what reads the weights for every 32 tokens, and than copies in f16. */
const LEAST_TOKENS = 33
const MOST_TOKENS = 4096
/** For which it is faster than the library's products of e4m3, which round the inputs first. */
export const MOST_TOKENS_OF_FP8 = 128
/** The only capability whose tensor cores have these instructions. */
const MAJOR = 9

interface Cut {
  readonly size: Size
  /** Tiles with a pair for all columns, of which the chip is full. Of each further one, so many pairs share the columns. */
  readonly whole: number
  readonly shares: number
}

type Shape = Pick<Product, 'rows' | 'columns'>

/** How products of these shapes are cut for so many tokens. `atOnce`: pairs of blocks that run at once. */
export function cutOf(atOnce: number, type: Layout, jobs: readonly Shape[], tokens: number): Cut {
  assert(atOnce > 0, 'no cluster of linear-tiles.cu fits on the device')
  const stages = Math.min(...jobs.map(({ columns }) => Math.ceil(columns / STAGE_INPUTS)))
  const boxes = Math.max(...jobs.map(({ columns }) => columns)) / BOX_INPUTS
  let best: Cut & { time: number } = { size: SIZES[0]!, whole: 0, shares: 1, time: Infinity }
  for (const [s, size] of SIZES.entries()) {
    const tiles = tilesOf(jobs, size, tokens)
    const timeOf = (share: number) => boxes * share * INPUT_TIMES[type][s]! + size.blockTime
    for (const shares of SHARES) {
      const whole = shares > 1 ? tiles - (tiles % atOnce) : tiles
      const waves = Math.ceil(((tiles - whole) * shares) / atOnce)
      if (shares > Math.min(stages, atOnce) || waves > SHARED_WAVES) continue
      const shareTime = timeOf(1 / shares) + (size.tokens * rowsOf(size) * SHARE_TIME) / 1000
      const time = Math.ceil(whole / atOnce) * timeOf(1) + waves * shareTime
      if (time < best.time) best = { size, whole, shares, time }
    }
  }
  return best
}

/** Rows of a block. */
function rowsOf({ warpgroups, units }: Size): number {
  return UNIT_ROWS * warpgroups * units
}

/** Pairs of blocks for some tokens. */
function pairsOf(jobs: readonly Shape[], size: Size): number {
  return jobs.reduce((sum, { rows }) => sum + Math.ceil(rows / (2 * rowsOf(size))), 0)
}

/** Tiles of a pair. */
function tilesOf(jobs: readonly Shape[], size: Size, tokens: number): number {
  return pairsOf(jobs, size) * Math.ceil(tokens / size.tokens)
}

/** kStageParts of linear-tiles.cu. */
function stageParts(type: Layout, { units, tokens }: Size): 1 | 2 {
  return (type === 'i8' || type === 'fp8') && units === 1 && tokens < 256 ? 2 : 1
}

/** Stages of the ring, as many as there is room for, and bytes of `Shared` of linear-tiles.cu. */
function ringOf(device: CudaDevice, type: Layout, size: Size) {
  const { tokens } = size
  const rows = rowsOf(size)
  const count = stageParts(type, size)
  const stageBytes =
    count * (2 * tokens * LAYOUTS[type].partInputs + rows * (LANES_BYTES + LAYOUTS[type].highBytes)) + BARRIER_BYTES
  // Scales are copied in 16 bytes of a row, those of some parts.
  const parts = 16 / (rowBytesOf(type, LAYOUTS[type].partInputs).scales || UNUSED_SCALES)
  const bytesOf = (stages: number) => stages * stageBytes + (Math.ceil((stages * count - 1) / parts) + 1) * 16 * rows
  let stages = MAX_STAGES
  while (bytesOf(stages) > device.info.sharedBytesPerBlock) stages--
  const sharedBytes = Math.max(bytesOf(stages), 4 * tokens * (rows + PADDING_ROWS) + stages * BARRIER_BYTES)
  return { stages, sharedBytes }
}

/** What a recording holds for these products. */
export interface TileScratch {
  /** Sums that shares of tiles give to others. */
  readonly partials: Scratch
  /** How many shares of a tile have given their sums. */
  readonly arrived: Scratch
}

/** Bytes of the sums of a pair's blocks, at the most. */
const PAIR_BYTES = 2 * 4 * LARGEST_TILE

/** Bytes of the sums of shares, where each multiprocessor has a block. */
export function tileScratchBytes(device: CudaDevice): number {
  return mostTiledTokens(device) > 0 ? (SHARED_WAVES * device.numSms * PAIR_BYTES) / 2 : 0
}

interface TiledProducts {
  /** The most tokens for which this is the way. */
  readonly mostTokens: number
  /** Whether this is the way for so many tokens. */
  serves(tokens: number): boolean
  /** Kernels for so many tokens. */
  prepare(tokens: number): void
  /** `absorbed`: products whose bias and epilogue are left to their reader. */
  run(stream: StepStream, tokens: number, absorbed: ReadonlySet<Product>): void
}

/** The fewest tokens for which tiles are the way; none where the device lacks what they need. */
export function leastTiledTokens(device: CudaDevice): number {
  return device.computeCapability[0] === MAJOR ? LEAST_TOKENS : Number.POSITIVE_INFINITY
}

/** The most tokens for which tiles are the way; 0 where the device lacks what they need. */
export function mostTiledTokens(device: CudaDevice): number {
  return device.computeCapability[0] === MAJOR ? MOST_TOKENS : 0
}

/** Of those that are not f16 among the products. `capacity`: rows of each x. Null where there are none, or no such kernel. */
export function tiledProducts(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
  capacity: number,
  scratch: TileScratch,
): TiledProducts | null {
  const groups = groupsOf(products)
  if (groups.length === 0 || device.computeCapability[0] !== MAJOR) return null
  const launches = new Map<number, ReturnType<typeof launchOf>[]>()
  const mostTokens = groups.some(({ type }) => type === 'fp8') ? MOST_TOKENS_OF_FP8 : MOST_TOKENS
  const atOnce = pairsAtOnce(device, groups[0]!.type)
  scratch.partials.reserve(SHARED_WAVES * atOnce * PAIR_BYTES)
  scratch.arrived.reserve(SHARED_WAVES * atOnce * COUNTER_BYTES)
  const launchesOf = (tokens: number) => {
    const bucket = bucketOf(tokens)
    const made =
      launches.get(bucket) ??
      groups.map((group) => launchOf(device, atOnce, group, countIndex, capacity, bucket, scratch))
    launches.set(bucket, made)
    return made
  }
  return {
    mostTokens,
    serves: (tokens) => tokens >= LEAST_TOKENS && tokens <= mostTokens,
    prepare(tokens) {
      launchesOf(tokens)
      scratch.partials.allocate()
      scratch.arrived.allocate()
    },
    run(stream, tokens, absorbed) {
      for (const { site, kernel, grid, threads, args, options } of launchesOf(tokens))
        stream.launch(site, kernel, grid, threads, () => args(absorbed), options)
    },
  }
}

/** Products of one type: a launch. */
interface Group {
  readonly type: Layout
  readonly jobs: readonly Product[]
  /** `TileMaps` of linear-tiles.cu for each of SIZES, made once: their native memory goes with the device. */
  readonly maps: Map<Size, Uint8Array>
}

function groupsOf(products: readonly Product[]): Group[] {
  const groups = new Map<Layout, Product[]>()
  for (const product of products) {
    const { type } = product
    if (type === 'f16') continue
    groups.set(type, [...(groups.get(type) ?? []), product])
  }
  return [...groups].map(([type, jobs]) => ({ type, jobs, maps: new Map() }))
}

function kernelOf(device: CudaDevice, type: Layout, size: Size) {
  const { tokens, warpgroups, units } = size
  const { stages, sharedBytes } = ringOf(device, type, size)
  const defines = { QUANT: LAYOUTS[type].code, TOKENS: tokens, WARPGROUPS: warpgroups, UNITS: units, STAGES: stages }
  const threads = WARPGROUP_THREADS * warpgroups + LOADING_THREADS
  return { kernel: device.kernel('linear-tiles', 'linear_tiles', defines), threads, sharedBytes }
}

/** A block has a multiprocessor for itself, whatever its size and type: one answer for all. */
function pairsAtOnce(device: CudaDevice, type: Layout): number {
  const { kernel, threads, sharedBytes } = kernelOf(device, type, SIZES[0]!)
  return device.clustersAtOnce(kernel, threads, sharedBytes, 2)
}

function launchOf(
  device: CudaDevice,
  atOnce: number,
  { type, jobs, maps }: Group,
  countIndex: number,
  capacity: number,
  tokens: number,
  scratch: TileScratch,
) {
  const cut = cutOf(atOnce, type, jobs, tokens)
  const { size, whole, shares } = cut
  const { kernel, threads, sharedBytes } = kernelOf(device, type, size)
  const pairs = whole + (tilesOf(jobs, size, tokens) - whole) * shares
  const ofSize = maps.get(size) ?? mapsOf(device, type, jobs, capacity, size)
  maps.set(size, ofSize)
  return {
    kernel,
    threads,
    grid: [2 * pairs, 1, 1] as const,
    options: { pdl: true, cluster: 2, sharedBytes },
    args: (absorbed: ReadonlySet<Product>) => [structOf(jobs, absorbed, countIndex, tokens, cut, scratch), ofSize],
    site: {},
  }
}

/** `TileJobs` of linear-tiles.cu. */
function structOf(
  jobs: readonly Product[],
  absorbed: ReadonlySet<Product>,
  countIndex: number,
  tokens: number,
  { size, whole, shares }: Cut,
  { partials, arrived }: TileScratch,
): Uint8Array {
  const struct = new StructBytes()
  let firstPair = 0
  for (const [j, product] of jobs.entries()) {
    const { y, scales, bias, rows, columns, epilogue } = product
    const isLeft = absorbed.has(product)
    struct
      .padTo(j * JOB_BYTES)
      .pointer(y.address)
      .pointer(scales)
      .pointer(isLeft ? null : bias)
      .i32(rows)
      .i32(columns)
    struct
      .i32(EPILOGUES[isLeft ? 'none' : epilogue])
      .i32(Number(y.type === 'f32'))
      .i32(firstPair)
    firstPair += pairsOf([product], size)
  }
  return struct
    .padTo(MAX_JOBS * JOB_BYTES)
    .i32(jobs.length)
    .i32(countIndex)
    .i32(Math.ceil(tokens / size.tokens))
    .i32(whole)
    .i32(shares)
    .pointer(partials.address)
    .pointer(arrived.address)
    .bytes()
}

/** `TileMaps` of linear-tiles.cu. */
function mapsOf(device: CudaDevice, type: Layout, jobs: readonly Product[], capacity: number, size: Size): Uint8Array {
  const high = LAYOUTS[type].highBytes
  const maps = new Uint8Array((high > 0 ? 3 : 2) * MAX_JOBS * TENSOR_MAP_BYTES)
  for (const [j, { x, weight, rows, columns }] of jobs.entries()) {
    const inputs = tensorMapOf(device, {
      ...{ type: 'f16', address: x, rows: capacity, columns },
      ...{ boxRows: size.tokens / 2, boxColumns: BOX_INPUTS, swizzle: 'rowsOf128' },
    })
    const bytes = {
      ...{ type: 'u8' as const, address: weight, rows },
      ...{ columns: rowBytesOf(type, columns).values, boxRows: rowsOf(size) },
    }
    const swizzle = stageParts(type, size) === 2 ? 'rowsOf128' : 'rowsOf64'
    const values = { ...bytes, boxColumns: stageParts(type, size) * LANES_BYTES, swizzle } as const
    maps.set(inputs, j * TENSOR_MAP_BYTES)
    maps.set(tensorMapOf(device, values), (MAX_JOBS + j) * TENSOR_MAP_BYTES)
    if (high === 0) continue
    const above = { ...bytes, boxColumns: high, swizzle: 'none' } as const
    maps.set(tensorMapOf(device, above), (2 * MAX_JOBS + j) * TENSOR_MAP_BYTES)
  }
  return maps
}

const TENSOR_MAP_BYTES = 128
const ALIGNMENT = 64n
/** CUtensorMapDataType and bytes of an element. */
const TYPES = { u8: [0, 1], f16: [6, 2] } as const
/** CUtensorMapSwizzle: 16 bytes of a row change places with others, so that those of eight rows lie in different banks. */
const SWIZZLES = { none: 0, rowsOf64: 2, rowsOf128: 3 } as const
/** What of the other enumerations of cuTensorMapEncodeTiled is wanted. */
const [NO_INTERLEAVE, PROMOTE_256B, ZEROS_BEYOND] = [0, 3, 0] as const

/** A matrix [rows, columns] and what of it a copy brings; zeros beyond its ends. */
interface TensorBoxes {
  readonly type: keyof typeof TYPES
  readonly address: DevicePointer
  readonly rows: number
  readonly columns: number
  readonly boxRows: number
  readonly boxColumns: number
  readonly swizzle: keyof typeof SWIZZLES
}

/** Takes native memory that goes with the device: to be made once, not for each launch. */
function tensorMapOf(device: CudaDevice, boxes: TensorBoxes): Uint8Array {
  const { type, address, rows, columns, boxRows, boxColumns, swizzle } = boxes
  const [code, elementBytes] = TYPES[type]
  const { address: start, view } = device.arena.allocate(TENSOR_MAP_BYTES + Number(ALIGNMENT))
  const skipped = (ALIGNMENT - (start % ALIGNMENT)) % ALIGNMENT
  device.driver.call(
    'cuTensorMapEncodeTiled',
    start + skipped,
    code,
    2,
    address,
    new BigUint64Array([BigInt(columns), BigInt(rows)]),
    new BigUint64Array([BigInt(elementBytes * columns)]),
    new Uint32Array([boxColumns, boxRows]),
    new Uint32Array([1, 1]),
    NO_INTERLEAVE,
    SWIZZLES[swizzle],
    PROMOTE_256B,
    ZEROS_BEYOND,
  )
  const at = view.byteOffset + Number(skipped)
  return new Uint8Array(view.buffer, at, TENSOR_MAP_BYTES).slice()
}
