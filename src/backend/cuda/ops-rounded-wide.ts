/**
 * Products of up to 128 tokens with matrices of integers on cuda, beyond those of ops-rounded-few.ts: a launch of
 * linear-wide.cu for all of a type, which reads each matrix once. It stores sums or adds them; biases and activations are
 * left to linear-epilogue.cu.
 */
import { assert } from '../../errors.ts'
import type { QuantisedType } from '../backend.ts'
import type { StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { Product } from './product.ts'
import { PART_INPUTS, QUANT_CODES } from './rounded-matrix.ts'
import { StructBytes } from './struct-bytes.ts'

/** MAX_JOBS, the bytes of a job, and kThreads of linear-wide.cu. */
const MAX_JOBS = 8
const JOB_BYTES = 56
const THREADS = 256
/** Rows of a block, and of a thread in each part. */
const TILE_ROWS = 256
const ROW_TILES = 4
/** Values of TOKENS with the blocks that shall fit a multiprocessor. */
const SIZES = [
  { TOKENS: 64, residents: 2 },
  { TOKENS: 128, residents: 1 },
] as const
const CLUSTERS = [8, 4, 2] as const
/** Parts of a row that a block of a cluster has at the least. */
const MIN_PARTS = 2
const MIN_STAGES = 2
const MAX_STAGES = 4
/** What a multiprocessor keeps of its shared memory for each block. */
const BLOCK_OVERHEAD = 1024
/** Capability from which blocks form clusters. */
const MIN_MAJOR = 9

interface Variant {
  readonly TOKENS: number
  readonly STAGES: number
  readonly residents: number
  readonly sharedBytes: number
}

/** The most tokens for which the device has a variant for every type; 0 where it has none. */
export function wideTokens(device: CudaDevice): number {
  const fits = (size: (typeof SIZES)[number]) =>
    (['i8', 'q4', 'nf4'] as const).every((type) => variantOf(device, type, size) !== null)
  return SIZES.filter(fits).at(-1)?.TOKENS ?? 0
}

function variantOf(
  device: CudaDevice,
  type: QuantisedType,
  { TOKENS, residents }: (typeof SIZES)[number],
): Variant | null {
  if (device.computeCapability[0] < MIN_MAJOR) return null
  // Of each of a thread's rows 16 bytes and a word of scales, or two; of the inputs a part.
  const scaleBytes = type === 'q4' ? 8 : 4
  const weightBytes = THREADS * ROW_TILES * (16 + scaleBytes)
  const stageBytes = weightBytes + 2 * TOKENS * PART_INPUTS[type]
  const shared = device.info.sharedBytesPerBlock + BLOCK_OVERHEAD
  const room = Math.floor(shared / residents) - BLOCK_OVERHEAD
  const STAGES = Math.min(MAX_STAGES, Math.floor(room / stageBytes))
  const sumBytes = 4 * TOKENS * (TILE_ROWS + 8)
  const sharedBytes = Math.max(STAGES * stageBytes, sumBytes)
  if (STAGES < MIN_STAGES || sharedBytes > room) return null
  return { TOKENS, STAGES, residents, sharedBytes }
}

interface WideProducts {
  run(stream: StepStream, tokens: number): void
}

/** Null where the device has no variant, or there is no such product. */
export function wideProducts(
  device: CudaDevice,
  products: readonly Product[],
  countIndex: number,
): WideProducts | null {
  const groups = groupsOf(products)
  if (groups.length === 0 || wideTokens(device) === 0) return null
  const variants = SIZES.filter(({ TOKENS }) => TOKENS <= wideTokens(device)).map((size) => ({
    most: size.TOKENS,
    launches: groups.map(({ type, jobs }) =>
      launchOf(device, type, jobs, countIndex, variantOf(device, type, size)!),
    ),
  }))
  return {
    run(stream, tokens) {
      const variant = variants.find(({ most }) => tokens <= most)
      assert(variant !== undefined, `${tokens} tokens in one pass over the weights`)
      for (const { site, kernel, grid, options, struct } of variant.launches)
        stream.launch(site, kernel, grid, THREADS, () => [struct], options)
    },
  }
}

/** A launch for each type. */
export function groupsOf(products: readonly Product[]) {
  const groups = new Map<QuantisedType, Product[]>()
  for (const product of products) {
    const { type } = product
    if (type === 'f16' || type === 'fp8') continue
    groups.set(type, [...(groups.get(type) ?? []), product])
  }
  return [...groups].map(([type, jobs]) => ({ type, jobs }))
}

function launchOf(
  device: CudaDevice,
  type: QuantisedType,
  jobs: readonly Product[],
  countIndex: number,
  { TOKENS, STAGES, residents, sharedBytes }: Variant,
) {
  const kernel = device.kernel('linear-wide', 'linear_wide', {
    ...{ QUANT: QUANT_CODES[type], TOKENS, STAGES },
  })
  const tiles = jobs.map(({ rows }) => Math.ceil(rows / TILE_ROWS)).reduce((a, b) => a + b, 0)
  const parts = Math.min(...jobs.map(({ columns }) => Math.ceil(columns / PART_INPUTS[type])))
  const most = Math.min((residents * device.numSms) / tiles, parts / MIN_PARTS)
  const cluster = CLUSTERS.find((blocks) => blocks <= most) ?? 1
  const grid = [tiles * cluster, 1, 1] as const
  const struct = structOf(jobs, countIndex, cluster)
  return { kernel, grid, options: { pdl: true, cluster, sharedBytes }, struct, site: {} }
}

/** `WideJobs` of linear-wide.cu. */
function structOf(jobs: readonly Product[], countIndex: number, cluster: number): Uint8Array {
  const struct = new StructBytes()
  let firstTile = 0
  for (const [j, { y, x, weight, scales, rows, columns, epilogue }] of jobs.entries()) {
    struct.padTo(j * JOB_BYTES)
    struct.pointer(y.address).pointer(x).pointer(weight).pointer(scales).i32(rows).i32(columns)
    struct
      .i32(Number(y.type === 'f32'))
      .i32(Number(epilogue === 'add'))
      .i32(firstTile)
    firstTile += Math.ceil(rows / TILE_ROWS)
  }
  return struct
    .padTo(MAX_JOBS * JOB_BYTES)
    .i32(jobs.length)
    .i32(countIndex)
    .i32(cluster)
    .bytes()
}
