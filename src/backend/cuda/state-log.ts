/**
 * The log of a pool of RWKV-7 states (kernels/cuda/wkv7-log.cuh). For every slot it holds the latest tokens, at most LOGGED,
 * that the slot's state does not include yet. In a step whose rows of one token have LOG_HEADS heads or more, these rows
 * append to their logs; in a smaller step they apply their logs to their states. Only the device knows how long a log is,
 * because only the device knows which rows run. The host knows which slots may have one. Those in which a step keeps states
 * between guesses have none: each was such a slot before, or that of a row with guesses, whose several tokens were applied to
 * its state.
 */
import type { StateShape } from '../backend.ts'
import type { Batch } from '../batch.ts'
import type { CudaDevice } from './device/device.ts'
import type { DevicePointer, KernelArgs } from './kernel/args.ts'
import type { Kernel } from './kernel/kernel.ts'
import { StructBytes } from './kernel/struct-bytes.ts'
import type { TensorType } from './resources.ts'
import { FEW_TOKENS } from './step/command.ts'

/** A state is written with every fourth token, a quarter of a slot's heads in each step. */
export const LOGGED = 3
/** Heads that a device works on at once. With fewer, memory is not the bottleneck. */
export const LOG_HEADS = 1024
/** Heads of a model. A narrower model loses as much in steps of few rows, whose kernel checks for logs, as it gains in large ones. */
const LEAST_HEADS = 32

/** Vectors of 64 channels that a log keeps for each token and head (Change of wkv7.cuh). */
const CHANGE_VECTORS = 5
const THREADS = 128
/** kSlots of wkv7-merge.cu. */
const SLOTS_AT_ONCE = 64

/** Bytes of a slot's log; 0 if the model or the number of slots is too small to gain from one, or the device cannot keep one. */
export function logBytes(
  device: CudaDevice,
  wkvType: TensorType,
  { layers, channels, heads }: StateShape,
  numSlots: number,
  leastHeads = LEAST_HEADS,
): number {
  const hasMeans = wkvType === 'f32' && device.computeCapability[0] >= 8
  if (!hasMeans || heads < leastHeads || numSlots * heads < LOG_HEADS) return 0
  return 4 * layers * (LOGGED * CHANGE_VECTORS * channels + heads)
}

export class StateLog {
  readonly #device: CudaDevice
  readonly #shape: StateShape
  /** i32 [slots, L, H] and f32 [slots, L, H, LOGGED, 5, 64], of slot 0; slot −1 is before it, as in states.ts. */
  readonly #counts: DevicePointer
  readonly #changes: DevicePointer
  readonly #mayHaveOne: Uint8Array
  readonly #merge: Kernel
  readonly #mergeArgs: KernelArgs

  /** `states`: slot 0's, f32 [slots, L, H, 64, 64]. */
  constructor(device: CudaDevice, shape: StateShape, numSlots: number, states: DevicePointer) {
    this.#device = device
    this.#shape = shape
    this.#mayHaveOne = new Uint8Array(numSlots)
    const [countBytes, changeBytes] = [this.#slotHeads * 4, this.#slotHeads * this.#headBytes]
    const counts = device.alloc((numSlots + 1) * countBytes)
    device.fill(counts, 0, (numSlots + 1) * countBytes)
    this.#counts = counts + BigInt(countBytes)
    this.#changes = device.alloc((numSlots + 1) * changeBytes) + BigInt(changeBytes)
    this.#merge = device.kernel('wkv7-merge', 'wkv7_merge', { STATE_F16: 0, LOGGED })
    this.#mergeArgs = device.args([this.struct(0), states, slotsStruct([])])
  }

  get #slotHeads(): number {
    return this.#shape.layers * this.#shape.heads
  }

  get #headBytes(): number {
    return 4 * LOGGED * CHANGE_VECTORS * this.#shape.headSize
  }

  /** `StateLog` of wkv7-log.cuh, from a layer's first head on. */
  struct(layer: number): Uint8Array {
    const first = layer * this.#shape.heads
    return new StructBytes()
      .pointer(this.#counts + BigInt(4 * first))
      .pointer(this.#changes + BigInt(this.#headBytes * first))
      .i32(this.#slotHeads)
      .bytes()
  }

  /** Before a step. Rows of several tokens, and few tokens in one launch (few-rows.cu, eight-rows.cu), take states without logs. */
  beginStep({ numRows, starts, slots }: Batch): void {
    let singles = 0
    while (singles < numRows && starts[singles + 1]! - starts[singles]! === 1) singles++
    this.merge(slots.subarray(starts[numRows]! <= FEW_TOKENS ? 0 : singles, numRows))
    if (singles * this.#shape.heads < LOG_HEADS) return
    for (let b = 0; b < singles; b++) this.#mayHaveOne[slots[b]!] = 1
  }

  /** The states of these slots are whole from here on. */
  merge(slots: Iterable<number>): void {
    const some: number[] = []
    for (const slot of slots) {
      if (this.#mayHaveOne[slot] === 0) continue
      this.#mayHaveOne[slot] = 0
      some.push(slot)
    }
    for (let i = 0; i < some.length; i += SLOTS_AT_ONCE) {
      const part = some.slice(i, i + SLOTS_AT_ONCE)
      this.#mergeArgs.set(2, slotsStruct(part))
      const grid = [this.#slotHeads, part.length, 1] as const
      this.#device.launch(this.#merge, grid, [THREADS, 1, 1], 0, this.#mergeArgs)
    }
  }

  /** New content is put into the slot: rows of the log do not apply to it. */
  forget(slot: number): void {
    if (this.#mayHaveOne[slot] === 0) return
    this.#mayHaveOne[slot] = 0
    const bytes = 4 * this.#slotHeads
    this.#device.fill(this.#counts + BigInt(slot * bytes), 0, bytes)
  }
}

/** `Slots` of wkv7-merge.cu. */
function slotsStruct(slots: readonly number[]): Uint8Array {
  const struct = new StructBytes()
  for (const slot of slots) struct.i32(slot)
  return struct.padTo(4 * SLOTS_AT_ONCE).bytes()
}
