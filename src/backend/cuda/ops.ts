/**
 * Recording on cuda: each op of backend.ts becomes a command that can be put on the stream for a step of any size within
 * the capacity. Owns the scratch memory that commands share. Knows no maths.
 */
import { SkeinError } from '../../errors.ts'
import type { Capacity, Ops } from '../backend.ts'
import type { Command } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { DevicePointer } from './kernel-args.ts'
import { type LinearCommand, linear, logits } from './ops-linear.ts'
import { embed, gatherNorm, shiftMix } from './ops-norm.ts'
import { sample } from './ops-sample.ts'
import { wkv7 } from './ops-wkv7.ts'

export class Recording {
  readonly commands: Command[] = []
  readonly #device: CudaDevice
  readonly #capacity: Capacity
  /** f32 numbers → memory that every command asking for as many shares: it holds nothing from one to the next. */
  readonly #scratch = new Map<number, DevicePointer>()
  /** The command before, where it is a linear: its reader can take over its biases, or make use of its zeros. */
  #lastLinear: LinearCommand | null = null

  constructor(device: CudaDevice, capacity: Capacity) {
    this.#device = device
    this.#capacity = capacity
  }

  ops(): Ops {
    const [device, capacity] = [this.#device, this.#capacity]
    return {
      embed: (...args) => this.#add(embed(device, capacity, ...args)),
      shiftMix: (...args) => this.#add(shiftMix(device, capacity, ...args)),
      linear: (jobs) => {
        const command = linear(device, capacity, jobs, this.#lastLinear?.products ?? [])
        this.#add(command)
        this.#lastLinear = command
      },
      wkv7: (...args) =>
        this.#add(wkv7(device, capacity, ...args, this.#lastLinear, this.#sharedFloats)),
      ddlerp: () => notOnCuda('ddlerp'),
      wkv6: () => notOnCuda('wkv6'),
      gatedAdd: () => notOnCuda('gatedAdd'),
      gatherNorm: (...args) => this.#add(gatherNorm(device, capacity, ...args)),
      logits: (...args) => this.#add(logits(device, capacity, ...args)),
      sample: (...args) => this.#add(sample(device, capacity, ...args, this.#sharedFloats)),
    }
  }

  #add(command: Command): void {
    this.commands.push(command)
    this.#lastLinear = null
  }

  readonly #sharedFloats = (count: number): DevicePointer => {
    const known = this.#scratch.get(count)
    if (known !== undefined) return known
    const address = this.#device.alloc(4 * count)
    this.#scratch.set(count, address)
    return address
  }

  dispose(): void {
    for (const command of this.commands) command.dispose?.()
    for (const address of this.#scratch.values()) this.#device.free(address)
    this.#scratch.clear()
  }
}

function notOnCuda(op: string): never {
  throw new SkeinError(
    'backend_unavailable',
    `the cuda backend has no ${op} yet, so RWKV-6 does not run on it; use --device cpu`,
  )
}
