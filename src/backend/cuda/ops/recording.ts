/**
 * Recording on cuda: each op of backend.ts becomes a command that can be put on the stream for a step of any size within
 * the capacity. Owns the scratch memory that commands share. Knows no maths.
 */

import { assert } from '../../../errors.ts'
import type { DeepEmbedWeights, Ops, Tensor } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { type LinearCommand, type LinearShared, linear, logits } from '../linear/linear.ts'
import { Scratch } from '../linear/scratch.ts'
import { CopyBudget } from '../linear/sparse.ts'
import { SOURCE_CODES } from '../source-rows.ts'
import type { Command } from '../step/command.ts'
import { hostTableOf, tensorOf } from '../step/operands.ts'
import { FewRowsLayers, StepCommand } from './fused-layers.ts'
import { wayFor } from './fused-layers-plan.ts'
import type { Recorded } from './layer-pattern.ts'
import { embed, gatherNorm, shiftMix } from './norm.ts'
import { sample } from './sample.ts'
import { ddlerp, gatedAdd, wkv6 } from './wkv6.ts'
import { wkv7 } from './wkv7.ts'

export class Recording {
  readonly commands: StepCommand[] = []
  readonly #device: CudaDevice
  readonly #capacity: Capacity
  readonly #numFlights: number
  /** f32 numbers → memory that every command asking for as many shares: it holds nothing from one to the next. */
  readonly #scratch = new Map<number, DevicePointer>()
  /** The command before, where it is a linear: its reader can take over its biases, or make use of its zeros. */
  #lastLinear: LinearCommand | null = null
  readonly #fewRows: FewRowsLayers
  readonly #linear: LinearShared

  /** `chooseWay`: how few-rows.cu reads the weights. */
  constructor(device: CudaDevice, capacity: Capacity, numFlights: number, chooseWay = wayFor) {
    this.#device = device
    this.#capacity = capacity
    this.#numFlights = numFlights
    const copies = new CopyBudget(device, 1 / 2)
    const halved = new Map<DevicePointer, DevicePointer>()
    this.#fewRows = new FewRowsLayers(device, capacity, copies, halved, chooseWay)
    const [weights, inputs, sums, partials] = Array.from({ length: 4 }, () => new Scratch(device))
    const arrived = new Scratch(device, true)
    this.#linear = {
      rounded: { weights: weights!, inputs: inputs!, sums: sums!, partials: partials!, arrived },
      copies,
      halved,
      // States have their memory by then, but not yet their log, which takes 23 % of that.
      halves: new CopyBudget(device, 1 / 4, 1 / 4),
    }
  }

  ops(): Ops {
    const [device, capacity] = [this.#device, this.#capacity]
    return {
      embed: (...args) => this.#add(embed(device, capacity, ...args), { op: 'embed', args }),
      shiftMix: (...args) => this.#add(shiftMix(device, capacity, ...args), { op: 'shiftMix', args }),
      linear: (jobs) => {
        const before = this.#lastLinear?.products ?? []
        const command = linear(device, capacity, jobs, before, this.#linear)
        this.#add(command, { op: 'linear', args: [jobs] })
        this.#lastLinear = command
        this.#fewRows.offer(this.commands, command.transposed)
      },
      wkv7: (...args) => this.#add(wkv7(device, capacity, ...args, this.#lastLinear), { op: 'wkv7', args }),
      deepEmbed: (...args) =>
        this.#add(deepEmbed(device, capacity, ...args, this.#sharedFloats), { op: 'deepEmbed', args }),
      ddlerp: (...args) => this.#add(ddlerp(device, capacity, ...args), { op: 'ddlerp', args }),
      wkv6: (...args) => this.#add(wkv6(device, capacity, ...args, this.#sharedFloats), { op: 'wkv6', args }),
      gatedAdd: (...args) => this.#add(gatedAdd(device, capacity, ...args), { op: 'gatedAdd', args }),
      gatherNorm: (...args) => this.#add(gatherNorm(device, capacity, ...args), { op: 'gatherNorm', args }),
      logits: (...args) => {
        this.#add(logits(device, capacity, ...args, this.#linear), { op: 'logits', args })
        this.#fewRows.offerLogits(this.commands)
      },
      sample: (...args) =>
        this.#add(sample(device, capacity, ...args, this.#sharedFloats, this.#numFlights), { op: 'sample', args }),
    }
  }

  #add(command: Command, recorded: Recorded): void {
    this.commands.push(new StepCommand(command, recorded))
    this.#lastLinear = null
  }

  readonly #sharedFloats = (count: number): DevicePointer => {
    const known = this.#scratch.get(count)
    if (known !== undefined) return known
    const address = this.#device.alloc(4 * count)
    this.#scratch.set(count, address)
    return address
  }

  /** Prepares, for steps of up to `rows` rows, what would be made at the first step of a size. */
  prepareFewRows(rows: number): void {
    this.#fewRows.prepare(rows)
  }

  dispose(): void {
    for (const command of this.commands) command.dispose()
    this.#fewRows.dispose()
    for (const address of this.#scratch.values()) this.#device.free(address)
    this.#scratch.clear()
    for (const scratch of Object.values(this.#linear.rounded)) scratch.dispose()
  }
}

const THREADS = 256
/** Channels of a thread. */
const CHANNELS_EACH = 4

function deepEmbed(
  device: CudaDevice,
  { tokens: most }: Capacity,
  u: Tensor,
  low: Tensor,
  own: Tensor,
  { s_emb, s2, s0 }: DeepEmbedWeights,
  scratch: (count: number) => DevicePointer,
): Command {
  const { columns, type, address } = hostTableOf(s_emb)
  const SIDE = Math.sqrt(columns)
  const channels = s0.shape[0]!
  assert(SIDE % 8 === 0 && SIDE <= 64, `a DeepEmbed matrix of ${SIDE} rows: 8, 16, … 64 expected`)
  assert(channels % CHANNELS_EACH === 0, `${channels} channels, expected a multiple of 4`)
  const defines = { SIDE, TABLE_TYPE: SOURCE_CODES[type] }
  const multiply = device.kernel('deep-embed', 'deep_embed_multiply', defines)
  const scale = device.kernel('deep-embed', 'deep_embed_scale', defines)
  const by = scratch(most * SIDE)
  const operands = [tensorOf(low, 'f16', most * SIDE), tensorOf(own, 'f16', most * columns)] as const
  const factors = [tensorOf(s2, 'f32', SIDE * channels), tensorOf(s0, 'f32', channels)] as const
  const scaled = tensorOf(u, 'f16', most * channels)
  const sites = { multiply: {}, scale: {} }
  const blocks = Math.ceil(channels / (CHANNELS_EACH * THREADS))
  return {
    run(stream, { tokens }) {
      stream.launch(sites.multiply, multiply, [tokens, 1, 1], THREADS, () => [by, ...operands, address])
      stream.launch(sites.scale, scale, [tokens, blocks, 1], THREADS, () => [scaled, by, ...factors, i32(channels)])
    },
  }
}
