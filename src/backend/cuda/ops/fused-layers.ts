/**
 * The layers of a decode step of few rows as one launch of few-rows.cu, as many as it knows from the first on, where the
 * device has room; what is left runs op by op. Owns the table of the layers' addresses.
 */
import { assert, SkeinError } from '../../../errors.ts'
import type { Batch, Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'
import type { Kernel } from '../kernel/kernel.ts'
import type { LaunchOptions } from '../kernel/launch.ts'
import { isWorthTurning, type TurnedMatrix, turnedBytes, turnedMatrix } from '../linear/active-rows.ts'
import type { CopyBudget } from '../linear/sparse.ts'
import { CudaMatrix } from '../resources.ts'
import { type Command, FEW_TOKENS, type StepShape, type StepStream } from '../step/command.ts'
import {
  canMakeLogits,
  firstRows,
  hasWords,
  layerBytes,
  numWords,
  planOf,
  planOfEight,
  wayFor,
} from './fused-layers-plan.ts'
import { type FewRowsMemory, fewRowsStruct, layerStruct, logitsStruct, type Output } from './fused-layers-structs.ts'
import {
  continues,
  halvedLayer,
  IN_NAMES,
  LAYER_OPS,
  matchLayer,
  type Recorded,
  type Rwkv7Layer,
} from './layer-pattern.ts'

const COOPERATIVE: LaunchOptions = { cooperative: true }

/** Tokens that kernels are compiled for: the last is that of eight-rows.cu. */
const SIZES = [1, 2, FEW_TOKENS] as const

/** A command, or what replaces it in steps of few tokens. */
export class StepCommand implements Command {
  /** The op for itself. */
  readonly alone: Command
  readonly recorded: Recorded
  #layers: FewRowsLayers | null = null
  #isTaken: (shape: StepShape) => boolean = () => false

  constructor(alone: Command, recorded: Recorded) {
    this.alone = alone
    this.recorded = recorded
  }

  /** `isTaken`: whether the whole does this command's work in a step of a shape. */
  joins(layers: FewRowsLayers, isTaken: (shape: StepShape) => boolean): void {
    this.#layers = layers
    this.#isTaken = isTaken
    layers.members.push(this)
  }

  /** The whole, when it runs in place of its members. */
  #whole(shape: StepShape): FewRowsLayers | null {
    return this.#isTaken(shape) ? this.#layers : null
  }

  prepare(...[gemm, shape]: Parameters<NonNullable<Command['prepare']>>): void {
    if (this.#whole(shape) === null) this.alone.prepare?.(gemm, shape)
  }

  upload(batch: Batch): void {
    this.alone.upload?.(batch)
  }

  run(stream: StepStream, shape: StepShape): void {
    const whole = this.#whole(shape)
    if (whole === null) this.alone.run(stream, shape)
    else if (whole.members[0] === this) whole.run(stream, shape)
  }

  uploadLater(batch: Batch): void {
    this.alone.uploadLater?.(batch)
  }

  runLater(stream: StepStream, samples: number): void {
    this.alone.runLater?.(stream, samples)
  }

  dispose(): void {
    this.alone.dispose?.()
  }
}

/** The kernel for a number of rows. */
interface Variant {
  readonly kernel: Kernel
  readonly threads: number
  readonly sharedBytes: number
  readonly site: object
  /** Of launches that make logits. */
  readonly logitsSite: object
  readonly struct: Uint8Array
  /** Of eight-rows.cu alone. */
  readonly mixed: DevicePointer | null
}

/**
 * How ffn.value lies in memory: its rows one after the other, transposed (f16), or turned round (fewer bits); halved: its
 * rows, and those of the other large matrices, in f16.
 */
type ValueForm = 'rows' | 'transposed' | 'turned' | 'halved'

/** Memory that the kernels share; `mixed` is that of eight-rows.cu alone. */
type Shared = Omit<FewRowsMemory, 'table'> & { readonly mixed: DevicePointer }

export class FewRowsLayers {
  readonly members: StepCommand[] = []
  readonly #device: CudaDevice
  readonly #capacity: Capacity
  readonly #copies: CopyBudget
  readonly #choose: typeof wayFor
  readonly #halved: ReadonlyMap<DevicePointer, DevicePointer>
  readonly #layers: Rwkv7Layer[] = []
  /** Of f16: ffn.value turned round. */
  readonly #values: DevicePointer[] = []
  /** Of fewer bits the same, from the first step on; null where memory is short: then all of it is read. */
  #turned: readonly TurnedMatrix[] | null | undefined
  /** As steps of one or two tokens read them, from the first one on. */
  #few: readonly Rwkv7Layer[] | null = null
  /** By size, from the first step of it on; null where it cannot be. */
  readonly #variants = new Map<number, Variant | null>()
  #shared: Shared | null = null
  #output: Output | null = null
  readonly #structs = new Map<ValueForm, Uint8Array>()
  /** Device memory to free at the end. */
  readonly #memory: DevicePointer[] = []

  /** `halved`: copies in f16, by the address of what they are copies of. `choose` decides how models with so many channels are read. */
  constructor(
    device: CudaDevice,
    capacity: Capacity,
    copies: CopyBudget,
    halved: ReadonlyMap<DevicePointer, DevicePointer>,
    choose = wayFor,
  ) {
    this.#device = device
    this.#capacity = capacity
    this.#copies = copies
    this.#halved = halved
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
    if (layer.type === 'f16') {
      if (transposed === null) return
      this.#values.push(transposed)
    }
    this.#layers.push(layer)
    for (const member of members) member.joins(this, ({ tokens }) => this.takes(tokens))
  }

  /** Takes in the last commands, if they make logits of the x that its last layer leaves. */
  offerLogits(commands: readonly StepCommand[]): void {
    const [before, ...members] = commands.slice(-3)
    if (before !== this.members.at(-1)) return
    const [gather, logits] = members.map(({ recorded }) => recorded)
    if (gather?.op !== 'gatherNorm' || logits?.op !== 'logits') return
    const [y, x, head] = logits.args
    const [hidden, from] = gather.args
    if (this.#layers.at(-1)?.x !== from || x !== hidden || !(head instanceof CudaMatrix)) return
    if (head.layout !== 'f16' || !this.#hasWords() || !canMakeLogits(this.#layers)) return
    this.#output = { gather: gather.args, logits: y, head }
    for (const member of members) member.joins(this, (shape) => this.makesLogits(shape))
  }

  /** Whether the launch of a step makes its logits, too. */
  makesLogits({ tokens, logits }: StepShape): boolean {
    return this.#output !== null && tokens < FEW_TOKENS && logits > 0 && logits <= tokens && this.takes(tokens)
  }

  /** Whether a step of so many tokens is one launch. */
  takes(tokens: number): boolean {
    return this.#variantFor(tokens) !== null
  }

  /** Prepares the kernels of steps of up to `rows` rows. */
  prepare(rows: number): void {
    for (const size of SIZES) {
      this.takes(size)
      if (size >= rows) break
    }
  }

  #variantFor(tokens: number): Variant | null {
    const size = SIZES.find((one) => tokens <= one)
    if (size === undefined) return null
    const known = this.#variants.get(size)
    if (known !== undefined) return known
    const made = this.#makeIfRoom(size)
    this.#variants.set(size, made)
    return made
  }

  /** Null, too, without memory for it: then each op runs for itself. */
  #makeIfRoom(size: number): Variant | null {
    try {
      return this.#make(size)
    } catch (error) {
      if (error instanceof SkeinError && error.code === 'out_of_memory') return null
      throw error
    }
  }

  #make(size: number): Variant | null {
    const device = this.#device
    const plan = this.#plan(size)
    if (plan === null) return null
    const { defines, threads, sharedBytes } = plan
    const kernel =
      size === FEW_TOKENS
        ? device.kernel('eight-rows', 'eight_rows', defines)
        : device.kernel('few-rows', 'few_rows', defines)
    if (device.blocksPerSm(kernel, threads, sharedBytes) < 1) return null
    this.#shared ??= this.#share()
    const shared = this.#shared
    const struct = this.#structFor(shared, this.#valueForm(size))
    const mixed = size === FEW_TOKENS ? shared.mixed : null
    return { kernel, threads, sharedBytes, site: {}, logitsSite: {}, struct, mixed }
  }

  #valueForm(size: number): ValueForm {
    if (size < FEW_TOKENS && this.#fewLayers() !== this.#layers) return 'halved'
    if (this.#layers[0]!.type !== 'f16') return size < FEW_TOKENS && this.#turned != null ? 'turned' : 'rows'
    return size < FEW_TOKENS && this.#hasWords() ? 'rows' : 'transposed'
  }

  /** Copies of ffn.value are made for a plan that uses them. */
  #plan(size: number) {
    if (size === FEW_TOKENS) return planOfEight(this.#device, this.#layers)
    const planned = (isTurned: boolean) => planOf(this.#device, this.#fewLayers(), this.#choose, size, isTurned)
    if (!this.turns()) return planned(false)
    const plan = planned(true)
    if (plan !== null && this.#turned === undefined) this.#turned = this.#turn()
    return this.#turned === null ? planned(false) : plan
  }

  /** Whether ffn.value of fewer bits is turned round, where there is memory for that. */
  turns(): boolean {
    const [layer] = this.#fewLayers()
    return layer !== undefined && isWorthTurning(layer.value)
  }

  #turn(): TurnedMatrix[] | null {
    const values = this.#layers.map(({ value }) => value)
    const bytes = values.reduce((sum, value) => sum + turnedBytes(value), 0)
    if (!this.#copies.take(bytes)) return null
    const turned: TurnedMatrix[] = []
    try {
      for (const value of values) turned.push(turnedMatrix(this.#device, value))
    } catch (error) {
      for (const one of turned) one.dispose()
      throw error
    }
    return turned
  }

  #alloc(bytes: number): DevicePointer {
    const address = this.#device.alloc(bytes)
    this.#memory.push(address)
    return address
  }

  #zeros(bytes: number): DevicePointer {
    const address = this.#alloc(bytes)
    this.#device.fill(address, 0, bytes)
    return address
  }

  #hasWords(): boolean {
    return hasWords(this.#device, this.#fewLayers(), this.#choose)
  }

  /**
   * Of narrow models the time goes into instructions and waiting, not into reading weights: where there are copies in f16
   * for steps of many tokens, they serve one or two as well, by the faster way that only f16 has.
   */
  #fewLayers(): readonly Rwkv7Layer[] {
    if (this.#few !== null) return this.#few
    const halved = this.#layers.flatMap((layer) => halvedLayer(layer, this.#halved) ?? [])
    const isAll = halved.length === this.#layers.length && halved.length > 0
    this.#few = isAll && hasWords(this.#device, halved, this.#choose) ? halved : this.#layers
    return this.#few
  }

  #share(): Shared {
    const most = SIZES.at(-1)!
    const layer = this.#layers[0]!
    // f16 [T, rows of in] and [T, rows of key]; f16 [inner matrices, T, C]; count of the barrier and epoch, u32; u64.
    const y = this.#alloc(2 * most * firstRows(this.#layers).at(-1)!)
    const u = this.#alloc(2 * most * layer.key.rows)
    const mixed = this.#alloc(2 * most * IN_NAMES.length * layer.states.shape.channels)
    const arrivals = this.#zeros(16)
    const words = this.#hasWords() ? this.#zeros(8 * numWords(this.#layers)) : null
    return { y, u, mixed, arrivals, words }
  }

  /** `FewRows` with a table of the layers' addresses. */
  #structFor(shared: Shared, form: ValueForm): Uint8Array {
    const known = this.#structs.get(form)
    if (known !== undefined) return known
    const layers = form === 'halved' ? this.#fewLayers() : this.#layers
    const bytes = layerBytes(layers[0]!.type)
    const table = this.#alloc(bytes * layers.length)
    for (const [i, layer] of layers.entries()) {
      const transposed = { address: this.#values[i]!, scales: null }
      const value = { rows: layer.value, halved: layer.value, transposed, turned: this.#turned?.[i] }[form]!
      this.#device.upload(table, layerStruct(this.#capacity, layer, value), i * bytes)
    }
    const struct = fewRowsStruct(this.#capacity, layers, { ...shared, table })
    this.#structs.set(form, struct)
    return struct
  }

  run(stream: StepStream, shape: StepShape): void {
    const variant = this.#variantFor(shape.tokens)
    assert(variant, 'few rows run before they were made')
    const { kernel, threads, sharedBytes, struct, mixed } = variant
    const output = this.makesLogits(shape) ? this.#output : null
    const site = output === null ? variant.site : variant.logitsSite
    const grid = [this.#device.numSms, 1, 1] as const
    const args = () => [struct, mixed ?? logitsStruct(this.#capacity, stream, output)]
    stream.launch(site, kernel, grid, threads, args, { ...COOPERATIVE, sharedBytes })
  }

  dispose(): void {
    for (const address of this.#memory.splice(0)) this.#device.free(address)
    this.#shared = null
    this.#structs.clear()
    for (const turned of this.#turned ?? []) turned.dispose()
    this.#turned = undefined
    for (const size of SIZES) this.#variants.set(size, null)
  }
}
