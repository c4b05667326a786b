/**
 * How few-rows.cu is compiled and launched for a model: which way it reads the weights, what it has in shared memory, or
 * that it cannot be.
 */
import type { CudaDevice } from '../device/device.ts'
import { LAYOUTS, type Layout, rowBytesOf } from '../rounded-matrix.ts'
import { IN_NAMES, type InName, LOW_NAMES, type Rwkv7Layer } from './layer-pattern.ts'

/** How a block reads the weights: each warp its columns of them (few-rows-warps.cuh), or one warp all (few-rows-feed.cuh). */
export type Way = 'warps' | 'feed'

/**
 * From so many channels on, one warp asks. On an H200, µs a layer by each way, warps first: 1,024 channels 16.2 and
 * 17.6, 2,048 30.7 and 27.2, 4,096 93.1 and 85.4 (docs/dev/kernels-log.md 38).
 */
const FEED_CHANNELS = 2048

/** Where the chosen way does not fit, each warp reads for itself. */
export const wayFor = (channels: number): Way => (channels >= FEED_CHANNELS ? 'feed' : 'warps')

/** As few-rows.cu counts: warps that multiply; one more is for the barrier, and one or more that feed. */
const WARPS = 16
/** Columns of a row that a warp reads at once. */
const UNIT_COLUMNS = 64
/** Of device and shared memory. */
const LINE_BYTES = 128
/** Outer ranks are multiples of this. */
const RANK_STEP = 32
const MAX_CHANNELS = 4096
/** Of shared memory that a kernel may have without asking for it: the phases' own, which grows as blocks get fewer. */
const MAX_STATIC_BYTES = 48 << 10
/** Entries of the list of active u that has room at once; more take several rounds. */
const MAX_LIST = 4096
/** Bytes of Layer and Matrices, and what scales add to both. */
const LAYER_BYTES = 448
const MATRICES_BYTES = 112
const SCALES_BYTES = 48
/**
 * Of integers, warps that ask and bytes of a stage of the ring, at the least. On an H200, µs of 8 layers of 4,096 channels
 * and the head, i8 and q4: one warp 806 and 697 by 16 KB, 774 and 632 by 32; two 735 and 581, 712 and 569. 12 layers of
 * 2,048 channels, two warps: 386 and 361 by 16 KB, 411 and 374 by 32 (docs/dev/kernels-log.md 45).
 */
const ROUNDED_FEED = 2
const stageBytesFor = (channels: number, split: number): number => ((channels >= 4096 ? 32 : 16) << 10) / split
/** Shared, less its sums and what the way of reading has there, with what that may be padded by. */
const SHARED_BYTES = 5888
/** Bytes for each token beyond the first. */
const TOKEN_BYTES = 320

/** The needs of one way of reading. */
interface Reading {
  readonly macros: Readonly<Record<string, number>>
  readonly warps: number
  /** Bytes of Shared, without sums. */
  readonly staticBytes: number
  readonly lowSums: number
  /** The ring has as many places of a size as there is room for. */
  readonly placeBytes: number
  readonly places: readonly [least: number, most: number]
}

export function layerBytes(type: Rwkv7Layer['type']): number {
  return LAYER_BYTES + (type === 'f16' ? 0 : SCALES_BYTES)
}

/** The rank of any layer that has one: all are alike. */
function innerOf(layers: readonly Rwkv7Layer[], name: InName) {
  return layers.find(({ inner }) => inner.has(name))?.inner.get(name)
}

/** Rows of the inner matrices up to each: r, k, v, then the ranks. */
export function firstRows(layers: readonly Rwkv7Layer[]): number[] {
  const first = [0]
  for (const name of IN_NAMES) {
    first.push(first.at(-1)! + (innerOf(layers, name)?.weight.rows ?? 0))
  }
  return first
}

/** What rows of `in` weigh: of r, k and v, and of an inner low rank, which stays f16. */
interface InWeights {
  readonly large: number
  readonly low: number
}

/** Each block's rows of `in`, as share_of_in() of few-rows.cuh has them: as many bytes to each. */
function sharesOfIn(first: readonly number[], blocks: number, { large, low }: InWeights) {
  const firstLow = first[3]!
  const largeWeight = large * firstLow
  const total = largeWeight + low * (first.at(-1)! - firstLow)
  const rowAt = (block: number) => {
    const weight = Math.floor((total * block) / blocks)
    return weight < largeWeight ? Math.floor(weight / large) : firstLow + Math.floor((weight - largeWeight) / low)
  }
  return Array.from({ length: blocks }, (_, i) => ({ begin: rowAt(i), end: rowAt(i + 1) }))
}

/** Columns of value that a block has. */
function valueColumns(channels: number, blocks: number): number {
  let columns = 16
  while (columns < 128 && columns * blocks < channels) columns *= 2
  return columns
}

/**
 * Whether blocks of few-rows.cu hand numbers to each other as words (few-rows-words.cuh), and read all of ffn.value far
 * ahead instead of the rows whose u is not zero. Measured on an H200 (docs/dev/kernels-log.md 78); where memory is slower,
 * all of ffn.value may take longer than its rows.
 */
export function hasWords(device: CudaDevice, layers: readonly Rwkv7Layer[], choose = wayFor): boolean {
  const { type, key, states } = layers[0]!
  const { channels } = states.shape
  const blocks = device.numSms
  // Each block has rows of all matrices, and of x no more than a unit of weights has.
  const fits = blocks <= Math.min(channels, key.rows / 2) && channels <= 16 * blocks && key.rows % UNIT_COLUMNS === 0
  return type === 'f16' && choose(channels) === 'warps' && device.computeCapability[0] === 9 && fits
}

/** Whether the same launch may make logits of f16, as HAS_LOGITS of few-rows.cuh says. */
export function canMakeLogits(layers: readonly Rwkv7Layer[]): boolean {
  const { key, states } = layers[0]!
  const { channels } = states.shape
  return channels >= 512 && channels <= 1024 && key.rows >= 2 * channels
}

/**
 * Words of few-rows.cu, u64, with room for two tokens: four copies of x after `output` and after `value`, two halves each
 * of the heads' outputs and of key's, and the outputs of `in`.
 */
export function numWords(layers: readonly Rwkv7Layer[]): number {
  const { key, states } = layers[0]!
  return 4 * 2 * (2.5 * states.shape.channels + key.rows / 2 + firstRows(layers).at(-1)!)
}

/** A model's widths as the kernel has them. */
interface Shape {
  readonly tokens: number
  readonly channels: number
  readonly headSize: number
  readonly ranks: readonly number[]
  readonly blocks: number
  readonly mixes: number
  /** Rows of `in`, of key and of output or value that a block has, at most. */
  readonly inRows: number
  readonly keyRows: number
  readonly outRows: number
  /** Columns of ffn.value if blocks read all of it in f16, else 0; half of them if units of it are twice as wide. */
  readonly valueColumns: number
  readonly type: Rwkv7Layer['type']
}

/** Units of 16 rows by 64 columns that a warp reads of a block's rows, at most. */
function unitsOfWarp(rows: number, columns: number): number {
  const units = columns / UNIT_COLUMNS
  return Math.ceil(rows / 16) * Math.ceil(units / Math.min(WARPS, units))
}

/** A ring for each warp, of units. */
function readingByWarps(shape: Shape): Reading {
  const { tokens, channels, headSize, ranks, blocks, mixes, inRows, keyRows, outRows, valueColumns } = shape
  const LOW_UNITS = ranks.reduce((units, rank) => units + Math.ceil(rank / UNIT_COLUMNS), 0)
  const heads = tokens * Math.ceil(channels / headSize / blocks)
  const low = heads * Math.ceil(((headSize / 16) * LOW_UNITS) / WARPS)
  const parts = [inRows, ...new Array<number>(mixes - 1).fill(1), outRows, keyRows]
  const units = parts.reduce((sum, rows) => sum + unitsOfWarp(rows, channels), low)
  const unitBytes = 8 * (units + (valueColumns === 0 ? 0 : unitsOfWarp(outRows, valueColumns)))
  return {
    macros: { FEED: 0, LOW_UNITS },
    warps: WARPS + 1,
    // The shift vector that is put aside is there, too.
    staticBytes: WARPS * (unitBytes + 4) + 4 * LOW_UNITS + (valueColumns === 0 ? 0 : 4 * channels),
    lowSums: headSize * LOW_UNITS,
    placeBytes: WARPS * 2048,
    // More units on their way to a warp, and what blocks tell each other waits behind them.
    places: [2, 5],
  }
}

/**
 * A ring for the block, of stages of 16 KB, unless 4 rows of a matrix are more. Where there is little room a stage has half of
 * a row's columns, which halves those of 4,096, and `least` stages are fewer: one on its way, not two.
 */
function readingByFeed({ channels, headSize, ranks, type }: Shape, SPLIT: number, least: number): Reading {
  const fourRows = (8 * channels) / SPLIT
  const STAGE_ROWS = 4 * Math.floor(Math.max(16 << 10, fourRows) / fourRows)
  const rounded = type === 'f16' ? null : roundedStage(type, channels, SPLIT)
  const stageBytes = Math.max((2 * STAGE_ROWS * channels) / SPLIT, rounded?.bytes ?? 0)
  const placeBytes = LINE_BYTES * Math.ceil(stageBytes / LINE_BYTES)
  const most = 16
  const FEED = rounded === null ? 1 : ROUNDED_FEED
  return {
    macros: { FEED, STAGE_ROWS, SPLIT, ...rounded?.macros },
    warps: WARPS + 1 + FEED,
    // Two layers' addresses are there, too.
    staticBytes: 16 * most + 4 * ranks.length + 2 * (layerBytes(type) - LAYER_BYTES),
    lowSums: headSize * ranks.length,
    placeBytes,
    // Those on their way, and one that is multiplied. Four rows of an outer rank are a stage at most.
    places: [ranks.every((rank) => 8 * rank <= placeBytes) ? least : Infinity, most],
  }
}

/** The ways to have a ring for the block, best first. Two rows by a ring of two spill up to 480 bytes of registers (sm_120). */
function readingsByFeed(shape: Shape): Reading[] {
  const units = shape.channels / UNIT_COLUMNS
  const canSplit = units % (2 * Math.min(WARPS, units)) === 0
  return (shape.tokens > 1 ? [3] : [3, 2]).flatMap((least) =>
    (canSplit ? [1, 2] : [1]).map((split) => readingByFeed(shape, split, least)),
  )
}

/** A stage of rows of fewer bits. */
function roundedStage(type: Layout, channels: number, split: number) {
  const { values, scales } = rowBytesOf(type, channels)
  const four = 4 * (values + scales)
  const ROUNDED_ROWS = 4 * Math.ceil(stageBytesFor(channels, split) / four)
  return { macros: { QUANT: LAYOUTS[type].code, ROUNDED_ROWS }, bytes: (ROUNDED_ROWS / 4) * four }
}

/** Whether rows of fewer bits can be shared by warps, 128 bytes each, and copied with their scales, 16 bytes at a time. */
function canRound(type: Layout, channels: number, keys: number): boolean {
  const pair = 2 * LAYOUTS[type].partInputs
  return channels % pair === 0 && keys % channels === 0 && rowBytesOf(type, channels).scales % 16 === 0
}

/**
 * The macros of few-rows.cu for so many tokens and its dynamic shared memory, or null where it does not fit. Each way of
 * reading adds in an order of its own, so several tokens are read as one would be, or not at all. `isTurned`: of ffn.value
 * of fewer bits there is a copy turned round.
 */
export function planOf(
  device: CudaDevice,
  layers: readonly Rwkv7Layer[],
  choose = wayFor,
  tokens = 1,
  isTurned = false,
) {
  const [layer] = layers
  if (layer === undefined || device.computeCapability[0] < 8) return null
  const { type } = layer
  const { channels, headSize } = layer.states.shape
  const KEYS = layer.key.rows
  if (channels > MAX_CHANNELS || channels % UNIT_COLUMNS > 0 || KEYS % 8 > 0) return null
  if (type !== 'f16' && !canRound(type, channels, KEYS)) return null
  const first = firstRows(layers)
  const ranks = LOW_NAMES.map((name) => innerOf(layers, name)?.weight.rows ?? 0)
  if (ranks.some((rank) => rank % RANK_STEP > 0)) return null
  const blocks = device.numSms
  const { values, scales } = type === 'f16' ? { values: 2 * channels, scales: 0 } : rowBytesOf(type, channels)
  const IN_WEIGHT = (values + scales) / 16
  const inRows = sharesOfIn(first, blocks, { large: IN_WEIGHT, low: channels / 8 })
  const matricesOf = ({ begin, end }: { begin: number; end: number }) =>
    IN_NAMES.filter((_, j) => first[j]! < end && first[j + 1]! > begin).length
  const MIXES = Math.max(1, ...inRows.map(matricesOf))
  const IN_ROWS = Math.max(...inRows.map(({ begin, end }) => end - begin))
  const LIST = Math.min(MAX_LIST, KEYS)
  const words = hasWords(device, layers, choose)
  const ACTIVE = Number(isTurned || (type === 'f16' && !words))
  // In turn: inputs of `in`, of the outer low ranks, the list of active u, or u itself.
  const active = tokens * (ACTIVE ? 4 * LIST : 2 * KEYS)
  const low = 2 * (first.at(-1)! - first[3]!)
  const region = Math.max(2 * tokens * MIXES * channels, low, active)
  const REGION = 16 * Math.ceil(region / 16)
  const slices = Math.min(WARPS, (words ? KEYS : channels) / UNIT_COLUMNS)
  // A word has two rows of key.
  const together = words ? 2 : 1
  const keyRows = together * Math.ceil(KEYS / together / blocks)
  const outRows = Math.ceil(channels / blocks)
  const sumRows = Math.max(IN_ROWS, outRows, keyRows)
  const columns = valueColumns(channels, blocks)
  if (tokens * columns > 32 * WARPS) return null
  const sums = tokens * Math.max(slices * sumRows, WARPS * columns)
  const matricesBytes = MATRICES_BYTES + layerBytes(type) - LAYER_BYTES
  const rest = REGION + matricesBytes * layers.length
  const STATE_F16 = Number(layer.states.wkvType === 'f16')
  const widths = { BLOCKS: blocks, WARPS, CHANNELS: channels, KEYS, IN_ROWS, MIXES }
  const rounded = type === 'f16' ? {} : { IN_WEIGHT }
  const common = { TOKENS: tokens, ...widths, REGION, LIST, STATE_F16, ...rounded, ACTIVE }
  // As kIsWide of few-rows.cuh.
  const isWide = outRows <= 8 && KEYS % (2 * UNIT_COLUMNS) === 0 && KEYS > channels
  const rows = { inRows: IN_ROWS, keyRows, outRows, valueColumns: words ? KEYS / (isWide ? 2 : 1) : 0 }
  const shape = { tokens, channels, headSize, ranks, blocks, mixes: MIXES, ...rows, type }
  const ways = type === 'f16' ? [readingByWarps(shape)] : []
  const readings = type !== 'f16' || choose(channels) === 'feed' ? [...readingsByFeed(shape), ...ways] : ways
  for (const { macros, warps, staticBytes, lowSums, placeBytes, places } of readings) {
    const perToken = (tokens - 1) * TOKEN_BYTES
    const used = SHARED_BYTES + staticBytes + perToken + 4 * Math.max(sums, lowSums)
    // The ring begins at a line.
    const FIXED = LINE_BYTES * Math.ceil(used / LINE_BYTES)
    const free = device.info.sharedBytesPerBlock - FIXED - rest
    const RING = Math.min(places[1], Math.floor(free / placeBytes))
    if (RING < places[0] || FIXED > MAX_STATIC_BYTES) continue
    const defines = { ...common, ...macros, RING, FIXED }
    if (tokens > 1 && planOf(device, layers, choose, 1, isTurned)?.threads !== 32 * warps) return null
    return { defines, threads: 32 * warps, sharedBytes: placeBytes * RING + rest }
  }
  return null
}

/** Of eight-rows.cu: tokens, rows per stage, columns of f16 in a stage per warp, and bytes of a head's operands per token. */
const EIGHT = 8
const TILE_ROWS = 16
const TILE_COLUMNS = 32
const HEAD_TOKEN_BYTES = 1536
/** Sums of a head's outer low ranks, and of two tiles, which use the same memory. */
const EIGHT_SUMS = 4096
/** Shared of eight-rows.cu without its sums, with rings of up to 16 stages. */
const EIGHT_SHARED_BYTES = 1792
/** Columns of a transposed ffn.value that a block can have. */
const MOST_COLUMNS = 32
/** Bytes of a stage with 16 quantised rows of CHANNELS columns, at most. Rows with more bytes are split into stages. */
const MAX_ROUNDED_STAGE_BYTES = 44 << 10

/**
 * The macros of eight-rows.cu and its dynamic shared memory, or null if it does not fit. Only on chips with as much shared
 * memory as Hopper: others are not measured.
 */
export function planOfEight(device: CudaDevice, layers: readonly Rwkv7Layer[]) {
  const [layer] = layers
  if (layer === undefined || device.computeCapability[0] < 9) return null
  const { type } = layer
  const { channels } = layer.states.shape
  const KEYS = layer.key.rows
  const stageColumns = WARPS * TILE_COLUMNS * (channels % (2 * WARPS * TILE_COLUMNS) === 0 ? 2 : 1)
  if (channels > MAX_CHANNELS || channels % stageColumns > 0 || KEYS % 32 > 0) return null
  const rounded = type === 'f16' ? null : roundedTiles(type, channels, KEYS)
  if (type !== 'f16' && rounded === null) return null
  const first = firstRows(layers)
  const ranks = LOW_NAMES.map((name) => innerOf(layers, name)?.weight.rows ?? 0)
  const stageBytes = Math.max(2 * TILE_ROWS * stageColumns, rounded?.bytes ?? 0)
  if (ranks.some((rank) => rank % RANK_STEP > 0 || 2 * TILE_ROWS * rank > stageBytes)) return null
  const blocks = device.numSms
  const columns = type === 'f16' ? valueColumns(channels, blocks) : 0
  // One mix of each token per block.
  if (blocks < IN_NAMES.length * EIGHT || columns > MOST_COLUMNS) return null
  const weights = { large: rounded?.macros.IN_WEIGHT ?? 1, low: rounded === null ? 1 : channels / 8 }
  const IN_ROWS = Math.max(...sharesOfIn(first, blocks, weights).map(({ begin, end }) => end - begin))
  const low = first.at(-1)! - first[3]!
  const REGION = Math.max(EIGHT * HEAD_TOKEN_BYTES, 2 * EIGHT * (low + 32))
  const sums = Math.max(EIGHT_SUMS, WARPS * columns * EIGHT)
  // Two layers' addresses are there, too.
  const used = EIGHT_SHARED_BYTES + 2 * (layerBytes(type) - LAYER_BYTES) + 4 * sums
  const FIXED = LINE_BYTES * Math.ceil(used / LINE_BYTES)
  const rest = REGION + (MATRICES_BYTES + layerBytes(type) - LAYER_BYTES) * layers.length
  const RING = Math.min(16, Math.floor((device.info.sharedBytesPerBlock - FIXED - rest) / stageBytes))
  if (RING < 3) return null
  const STATE_F16 = Number(layer.states.wkvType === 'f16')
  const widths = { BLOCKS: blocks, WARPS, CHANNELS: channels, KEYS, IN_ROWS }
  const FEED = rounded === null ? 1 : ROUNDED_FEED
  const reading = { FEED, STAGE_ROWS: TILE_ROWS, SPLIT: channels / stageColumns, RING }
  const defines = { TOKENS: EIGHT, ...widths, ...reading, REGION, FIXED, STATE_F16, ...rounded?.macros }
  return { defines, threads: 32 * (WARPS + 1 + FEED), sharedBytes: stageBytes * RING + rest }
}

/** The stages of quantised rows, as eight-rows-rounded.cuh lays them out; null if rows cannot be read 16 bytes at a time. */
function roundedTiles(type: Layout, channels: number, keys: number) {
  const { values, scales } = rowBytesOf(type, channels)
  const ROUNDED_SPLIT =
    [1, 2, 4].find((split) => (TILE_ROWS * (values + scales)) / split <= MAX_ROUNDED_STAGE_BYTES) ?? 0
  if (channels % (ROUNDED_SPLIT * LAYOUTS[type].partInputs) !== 0 || keys % channels !== 0) return null
  const [rowValues, rowScales] = [values / ROUNDED_SPLIT, scales / ROUNDED_SPLIT]
  if (rowScales % 16 !== 0) return null
  const valueStride = 128 * Math.floor((rowValues + 63) / 128) + 64
  const scaleStride = rowScales === 0 ? 0 : 16 * ((rowScales / 16) | 1)
  const bytes = LINE_BYTES * Math.ceil((TILE_ROWS * (valueStride + scaleStride)) / LINE_BYTES)
  return { macros: { QUANT: LAYOUTS[type].code, ROUNDED_SPLIT, IN_WEIGHT: (values + scales) / 16 }, bytes }
}
