/**
 * The layers of a step of one token as one launch of one-row.cu, as many as it knows from the first on, where the device
 * has room; what is left runs op by op. Owns the table of the layers' addresses.
 */
import { assert } from '../../errors.ts'
import type { Capacity, Tensor } from '../backend.ts'
import type { Command, StepShape, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { Kernel } from './kernel.ts'
import type { DevicePointer } from './kernel-args.ts'
import type { LaunchOptions } from './launch.ts'
import {
  continues,
  IN_NAMES,
  LAYER_OPS,
  LOW_NAMES,
  matchLayer,
  type Recorded,
  type Rwkv7Layer,
} from './layer-pattern.ts'
import { firstRows, layerBytes, planOf, wayFor } from './one-row-plan.ts'
import { normOf, tensorOf } from './operands.ts'
import { wkv7Struct } from './ops-wkv7.ts'
import { StructBytes } from './struct-bytes.ts'

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
  readonly threads: number
  readonly sharedBytes: number
  readonly blocks: number
  readonly struct: Uint8Array
  readonly memory: readonly DevicePointer[]
}

export class OneRowLayers {
  readonly members: StepCommand[] = []
  readonly #device: CudaDevice
  readonly #capacity: Capacity
  readonly #choose: typeof wayFor
  readonly #layers: Rwkv7Layer[] = []
  readonly #values: DevicePointer[] = []
  readonly #site = {}
  /** undefined until the first step of one token, null where it cannot be. */
  #made: Made | null | undefined

  /** `choose` decides how models of so many channels are read. */
  constructor(device: CudaDevice, capacity: Capacity, choose = wayFor) {
    this.#device = device
    this.#capacity = capacity
    this.#choose = choose
  }

  /**
   * Takes in the layer that the last commands are, if they are one. `transposed`: its value matrix so on the device,
   * which is what f16 takes.
   */
  offer(commands: readonly StepCommand[], transposed: DevicePointer | null): void {
    const members = commands.slice(-LAYER_OPS)
    const layer = matchLayer(members.map(({ recorded }) => recorded))
    if (layer === null || !continues(this.#layers, layer)) return
    const value = layer.type === 'f16' ? transposed : layer.value.address
    if (value === null) return
    this.#layers.push(layer)
    this.#values.push(value)
    for (const member of members) member.joins(this)
  }

  isUsable(): boolean {
    if (this.#made === undefined) this.#made = this.#make()
    return this.#made !== null
  }

  #make(): Made | null {
    const device = this.#device
    const plan = planOf(device, this.#layers, this.#choose)
    if (plan === null) return null
    const { defines, threads, sharedBytes } = plan
    const kernel = device.kernel('one-row', 'one_row', defines)
    const blocks = device.numSms
    if (device.blocksPerSm(kernel, threads, sharedBytes) < 1) return null
    const bytes = layerBytes(this.#layers[0]!.type)
    const table = device.alloc(bytes * this.#layers.length)
    for (const [i, layer] of this.#layers.entries())
      device.upload(table, layerStruct(this.#capacity, layer, this.#values[i]!), i * bytes)
    const between = [firstRows(this.#layers).at(-1)!, this.#layers[0]!.key.rows] as const
    const [y, u] = between.map((count) => device.alloc(2 * count)) as [DevicePointer, DevicePointer]
    const arrivals = device.alloc(16)
    device.fill(arrivals, 0, 16)
    const struct = oneRowStruct(this.#capacity, this.#layers, { table, y, u, arrivals })
    return { kernel, threads, sharedBytes, blocks, struct, memory: [table, y, u, arrivals] }
  }

  run(stream: StepStream): void {
    const made = this.#made
    assert(made, 'one row run before it was made')
    const grid = [made.blocks, 1, 1] as const
    const options = { ...COOPERATIVE, sharedBytes: made.sharedBytes }
    stream.launch(this.#site, made.kernel, grid, made.threads, () => [made.struct], options)
  }

  dispose(): void {
    for (const address of this.#made?.memory ?? []) this.#device.free(address)
    this.#made = null
  }
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
  if (layer.type !== 'f16') {
    const inputs = IN_NAMES.slice(0, 3).map((name) => inner.get(name)!.weight)
    for (const { scales } of [...inputs, layer.output, layer.key, layer.value])
      struct.pointer(scales)
  }
  struct.pointer(states.shiftAddress(index, 0)).pointer(states.shiftAddress(index, 1))
  const bytes = new Uint8Array(layerBytes(layer.type))
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
