/**
 * All layers of a step of one token as one launch of one-row.cu, where the recording holds nothing but RWKV-7 layers of
 * f16 weights and the device has room; otherwise each op runs for itself. Owns the table of the layers' addresses.
 */
import { assert } from '../../errors.ts'
import type { Capacity, Tensor } from '../backend.ts'
import type { Command, StepShape, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { Kernel } from './kernel.ts'
import type { DevicePointer } from './kernel-args.ts'
import type { LaunchOptions } from './launch.ts'
import {
  IN_NAMES,
  type InName,
  LAYER_OPS,
  LOW_NAMES,
  matchLayer,
  type Recorded,
  type Rwkv7Layer,
} from './layer-pattern.ts'
import { normOf, tensorOf } from './operands.ts'
import { wkv7Struct } from './ops-wkv7.ts'
import { StructBytes } from './struct-bytes.ts'

/** As one-row.cu counts: warps that multiply, and one more for the barrier. */
const WARPS = 16
const THREADS = 32 * (WARPS + 1)
/** Weights are read in units of 16 rows by 64 columns, f16. */
const UNIT_COLUMNS = 64
const UNIT_BYTES = 2048
/** Of device and shared memory. */
const LINE_BYTES = 128
/** Outer ranks are multiples of this. */
const RANK_STEP = 32
const MAX_CHANNELS = 4096
/** Units on their way to a warp: more, and what blocks tell each other waits behind them. */
const MAX_RING = 5
const MIN_RING = 2
/** Of shared memory that a kernel may have without asking for it: the phases' own, which grows as blocks get fewer. */
const MAX_STATIC_BYTES = 48 << 10
/** Entries of the list of active u that has room at once; more take several rounds. */
const MAX_LIST = 4096
/** Bytes of Layer and Matrices. */
const LAYER_BYTES = 464
const MATRICES_BYTES = 104
/** Shared, less its arrays over runs, units of low ranks and sums. */
const SHARED_BYTES = 5984
const RUN_BYTES = 16

const COOPERATIVE: LaunchOptions = { cooperative: true }

/** A command, or what replaces it in steps of one token. */
export class StepCommand implements Command {
  /** The op for itself. */
  readonly alone: Command
  readonly recorded: Recorded
  #layers: OneRowLayers | null = null

  constructor(alone: Command, recorded: Recorded) {
    this.alone = alone
    this.recorded = recorded
  }

  joins(layers: OneRowLayers): void {
    this.#layers = layers
    layers.members.push(this)
  }

  /** The whole, when it runs in place of its members. */
  #whole(shape: StepShape): OneRowLayers | null {
    return shape.tokens === 1 && shape.isDecode && this.#layers?.isUsable() ? this.#layers : null
  }

  prepare(...[gemm, shape]: Parameters<NonNullable<Command['prepare']>>): void {
    if (this.#whole(shape) === null) this.alone.prepare?.(gemm, shape)
  }

  run(stream: StepStream, shape: StepShape): void {
    const whole = this.#whole(shape)
    if (whole === null) this.alone.run(stream, shape)
    else if (whole.members[0] === this) whole.run(stream)
  }

  dispose(): void {
    this.alone.dispose?.()
  }
}

interface Made {
  readonly kernel: Kernel
  readonly sharedBytes: number
  readonly blocks: number
  readonly struct: Uint8Array
  readonly memory: readonly DevicePointer[]
}

export class OneRowLayers {
  readonly members: StepCommand[] = []
  readonly #device: CudaDevice
  readonly #capacity: Capacity
  readonly #layers: Rwkv7Layer[] = []
  readonly #values: DevicePointer[] = []
  readonly #site = {}
  /** undefined until the first step of one token, null where it cannot be. */
  #made: Made | null | undefined

  constructor(device: CudaDevice, capacity: Capacity) {
    this.#device = device
    this.#capacity = capacity
  }

  /** Takes in the layer that the last commands are, if they are one. `value`: its matrix transposed, on the device. */
  offer(commands: readonly StepCommand[], value: DevicePointer | null): void {
    const members = commands.slice(-LAYER_OPS)
    const layer = matchLayer(members.map(({ recorded }) => recorded))
    if (layer === null || value === null || !this.#continues(layer)) return
    this.#layers.push(layer)
    this.#values.push(value)
    for (const member of members) member.joins(this)
  }

  /** Whether the layer is of one kind with the first: the same buffers and shapes, the next of the states. */
  #continues(layer: Rwkv7Layer): boolean {
    const [first] = this.#layers
    if (first === undefined) return true
    const likeFirst = IN_NAMES.every((name) => {
      const [one, other] = [first.inner.get(name), layer.inner.get(name)]
      return !one || !other || (one.y === other.y && one.weight.rows === other.weight.rows)
    })
    const hasGate = layer.inner.has('vGate')
    return (
      likeFirst &&
      hasGate &&
      layer.x === first.x &&
      layer.out === first.out &&
      layer.states === first.states &&
      layer.index === first.index + this.#layers.length &&
      layer.key.rows === first.key.rows &&
      layer.norms.every(({ eps }) => eps === first.norms[0].eps)
    )
  }

  isUsable(): boolean {
    if (this.#made === undefined) this.#made = this.#make()
    return this.#made !== null
  }

  #make(): Made | null {
    const device = this.#device
    const plan = planOf(device, this.#layers)
    if (plan === null) return null
    const { defines, sharedBytes } = plan
    const kernel = device.kernel('one-row', 'one_row', defines)
    const blocks = device.numSms
    if (device.blocksPerSm(kernel, THREADS, sharedBytes) < 1) return null
    const table = device.alloc(LAYER_BYTES * this.#layers.length)
    for (const [i, layer] of this.#layers.entries())
      device.upload(table, layerStruct(this.#capacity, layer, this.#values[i]!), i * LAYER_BYTES)
    const between = [firstRows(this.#layers).at(-1)!, this.#layers[0]!.key.rows] as const
    const [y, u] = between.map((count) => device.alloc(2 * count)) as [DevicePointer, DevicePointer]
    const arrivals = device.alloc(16)
    device.fill(arrivals, 0, 16)
    const struct = oneRowStruct(this.#capacity, this.#layers, { table, y, u, arrivals })
    return { kernel, sharedBytes, blocks, struct, memory: [table, y, u, arrivals] }
  }

  run(stream: StepStream): void {
    const made = this.#made
    assert(made, 'one row run before it was made')
    const grid = [made.blocks, 1, 1] as const
    const options = { ...COOPERATIVE, sharedBytes: made.sharedBytes }
    stream.launch(this.#site, made.kernel, grid, THREADS, () => [made.struct], options)
  }

  dispose(): void {
    for (const address of this.#made?.memory ?? []) this.#device.free(address)
    this.#made = null
  }
}

/** Of any layer that has one: all are alike. */
function innerOf(layers: readonly Rwkv7Layer[], name: InName) {
  return layers.find(({ inner }) => inner.has(name))?.inner.get(name)
}

/** Rows of the inner matrices up to each: r, k, v, then the ranks. */
function firstRows(layers: readonly Rwkv7Layer[]): number[] {
  const first = [0]
  for (const name of IN_NAMES) {
    first.push(first.at(-1)! + (innerOf(layers, name)?.weight.rows ?? 0))
  }
  return first
}

/** How many of the inner matrices a block has rows of at most. */
function mostMixes(first: readonly number[], blocks: number): number {
  let most = 1
  for (const total of first.slice(-2))
    for (let block = 0; block < blocks; block++) {
      const begin = Math.floor((total * block) / blocks)
      const end = Math.floor((total * (block + 1)) / blocks)
      const touched = IN_NAMES.filter((_, j) => first[j]! < end && first[j + 1]! > begin).length
      most = Math.max(most, touched)
    }
  return most
}

/** Columns of value that a block has. */
function valueColumns(channels: number, blocks: number): number {
  let columns = 16
  while (columns < 128 && columns * blocks < channels) columns *= 2
  return columns
}

/** The macros of one-row.cu and its dynamic shared memory, or null where it does not fit. */
function planOf(device: CudaDevice, layers: readonly Rwkv7Layer[]) {
  const [layer] = layers
  if (layer === undefined || device.computeCapability[0] < 8) return null
  const { channels, headSize } = layer.states.shape
  const KEYS = layer.key.rows
  if (channels > MAX_CHANNELS || channels % UNIT_COLUMNS > 0 || KEYS % 8 > 0) return null
  const first = firstRows(layers)
  const ranks = LOW_NAMES.map((name) => innerOf(layers, name)?.weight.rows ?? 0)
  if (ranks.some((rank) => rank % RANK_STEP > 0)) return null
  const blocks = device.numSms
  const MIXES = mostMixes(first, blocks)
  const IN_ROWS = Math.ceil(first.at(-1)! / blocks)
  const LOW_UNITS = ranks.reduce((units, rank) => units + Math.ceil(rank / UNIT_COLUMNS), 0)
  const LIST = Math.min(MAX_LIST, KEYS)
  // In turn: inputs of `in`, of the outer low ranks, the list of active u.
  const region = Math.max(2 * MIXES * channels, 2 * (first.at(-1)! - first[3]!), 4 * LIST)
  const REGION = 16 * Math.ceil(region / 16)
  const slices = Math.min(WARPS, channels / UNIT_COLUMNS)
  const sumRows = Math.max(IN_ROWS, Math.ceil(Math.max(channels, KEYS) / blocks))
  const valueSums = WARPS * valueColumns(channels, blocks)
  const sums = Math.max(slices * sumRows, headSize * LOW_UNITS, valueSums)
  const heads = Math.ceil(channels / headSize / blocks)
  const lowRuns = Math.ceil(((headSize / 16) * LOW_UNITS) / WARPS)
  const runs = WARPS * (MIXES + heads * lowRuns + 2)
  const arrays = RUN_BYTES * runs + 4 * (LOW_UNITS + sums)
  // The ring begins at a line.
  const fixed = LINE_BYTES * Math.ceil((SHARED_BYTES + arrays) / LINE_BYTES)
  const rest = REGION + MATRICES_BYTES * layers.length
  const free = device.info.sharedBytesPerBlock - fixed - rest
  const RING = Math.min(MAX_RING, Math.floor(free / (WARPS * UNIT_BYTES)))
  if (RING < MIN_RING || fixed > MAX_STATIC_BYTES) return null
  const STATE_F16 = Number(layer.states.wkvType === 'f16')
  const shape = { BLOCKS: blocks, WARPS, CHANNELS: channels, KEYS, IN_ROWS, LOW_UNITS }
  const defines = { ...shape, RING, MIXES, REGION, LIST, STATE_F16 }
  return { defines, sharedBytes: WARPS * UNIT_BYTES * RING + rest }
}

/** `Layer` of one-row.cu. */
function layerStruct(capacity: Capacity, layer: Rwkv7Layer, value: DevicePointer): Uint8Array {
  const { inner, outer, states, index, weights, operands } = layer
  const { channels } = states.shape
  const vector = (tensor: Tensor | null | undefined) =>
    tensor ? tensorOf(tensor, 'f32', channels) : null
  const bias = (name: (typeof LOW_NAMES)[number]) => vector(outer.get(name)?.bias)
  const biases = { w: bias('w'), a: bias('a'), v: bias('vGate') }
  const norms = layer.norms.map((norm) => normOf(norm, channels))
  const ln = normOf(weights.ln_x, channels)
  const struct = new StructBytes()
  for (const norm of norms) struct.pointer(norm.weight).pointer(norm.bias)
  struct.pointer(vector(layer.keyMix))
  for (const name of IN_NAMES) struct.pointer(vector(inner.get(name)?.mix))
  struct.pointer(biases.w).pointer(biases.a).pointer(biases.v)
  for (const tensor of [weights.k_k, weights.k_a, weights.r_k]) struct.pointer(vector(tensor))
  struct.pointer(ln.weight).pointer(ln.bias)
  for (const name of IN_NAMES) struct.pointer(inner.get(name)?.weight.address ?? null)
  for (const name of LOW_NAMES) struct.pointer(outer.get(name)?.weight.address ?? null)
  struct.pointer(layer.output.address).pointer(layer.key.address).pointer(value)
  struct.pointer(states.shiftAddress(index, 0)).pointer(states.shiftAddress(index, 1))
  const bytes = new Uint8Array(LAYER_BYTES)
  const head = struct.bytes()
  bytes.set(head)
  bytes.set(
    wkv7Struct(capacity, layer.out, operands, weights, states, index, biases, 0n),
    head.length,
  )
  return bytes
}

/** `OneRow` of one-row.cu. */
function oneRowStruct(
  capacity: Capacity,
  layers: readonly Rwkv7Layer[],
  memory: Readonly<Record<'table' | 'y' | 'u' | 'arrivals', DevicePointer>>,
): Uint8Array {
  const layer = layers[0]!
  const { channels } = layer.states.shape
  const struct = new StructBytes()
  struct.pointer(memory.table).pointer(tensorOf(layer.x, 'f32', capacity.tokens * channels))
  struct.pointer(memory.y).pointer(memory.u).pointer(memory.arrivals)
  struct.i64(layer.states.shiftStride)
  for (const row of firstRows(layers)) struct.i32(row)
  struct.i32(layers.length).f32(layer.norms[0].eps)
  return struct.bytes()
}
