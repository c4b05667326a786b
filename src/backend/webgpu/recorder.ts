/** What ops are recorded with: parameters, bindings and kernels of launches, made once. Knows no ops. */
/// <reference types="@webgpu/types" />
import { SkeinError } from '../../errors.ts'
import type { Capacity } from '../batch.ts'
import { type Access, type KernelVariant, USAGE, type WebgpuDevice } from './device.ts'
import type { Launch, Recorder, StepShape, Word } from './launch.ts'
import {
  Halves,
  type HalvesOf,
  isKeeping,
  Keeper,
  type KeptAs,
  keepingNone,
  LEAST_BY_MATRICES,
} from './products/halves.ts'
import type { Constants, Kernel } from './source.ts'

/** Of every kernel: the arena and the step. */
export const COMMON: readonly Access[] = ['write', 'read']
const PARAMS: Access = 'uniform'
/** Bind groups name ranges of the buffer of parameters; they begin at multiples of this. */
const PARAMS_UNIT = 256
const FIRST_PARAMS_BYTES = 1 << 16

interface KeptVariant extends KernelVariant {
  readonly rows?: (step: StepShape) => number
  /** Other constants for some steps; `isFew`: they have few rows. */
  readonly ofStep?: (step: StepShape, isFew: boolean) => Constants
}

/** In the place of one that is made later. */
const NOTHING: Launch = {
  get bindings(): GPUBindGroup {
    throw new SkeinError('internal', 'a launch before all was recorded')
  },
  plan: () => null,
}

export class Launches implements Recorder {
  readonly launches: Launch[] = []
  readonly device: WebgpuDevice
  readonly capacity: Capacity
  readonly halves: Record<HalvesOf, Halves>
  readonly keepers = new Map<number, Keeper>()
  readonly whole = new Set<number>()
  /** Buffers that go with the program. */
  protected readonly own: GPUBuffer[] = []
  protected isRecorded = false
  #later: (() => void)[] = []
  #params: GPUBuffer
  #paramsEnd = 0

  constructor(device: WebgpuDevice, capacity: Capacity) {
    this.device = device
    this.capacity = capacity
    const halves = () => new Halves(device)
    this.halves = {
      rounded: halves(),
      products: halves(),
      others: halves(),
      bytesOfProducts: halves(),
      bytesOfOthers: halves(),
    }
    this.#params = this.#createParams()
  }

  #createParams(): GPUBuffer {
    const buffer = this.device.buffer(FIRST_PARAMS_BYTES, USAGE.uniform | USAGE.copyDst)
    this.own.push(buffer)
    return buffer
  }

  /** Parameters of one launch, in the order of the kernel's struct. */
  params(words: readonly Word[]): GPUBufferBinding {
    const data = new Uint32Array(Math.ceil(words.length / 4) * 4)
    const floats = new Float32Array(data.buffer)
    for (const [i, word] of words.entries())
      if (typeof word === 'number') data[i] = word
      else floats[i] = word.f32
    if (this.#paramsEnd + data.byteLength > this.#params.size) {
      this.#params = this.#createParams()
      this.#paramsEnd = 0
    }
    const offset = this.#paramsEnd
    this.#paramsEnd = Math.ceil((offset + data.byteLength) / PARAMS_UNIT) * PARAMS_UNIT
    this.device.write(this.#params, offset, data)
    return { buffer: this.#params, offset, size: data.byteLength }
  }

  bind(access: readonly Access[], params: GPUBufferBinding, buffers: readonly GPUBuffer[]): GPUBindGroup {
    return this.device.bindGroup([PARAMS, ...access], [params, ...buffers])
  }

  kernel(file: string, access: readonly Access[], variant?: KernelVariant): Kernel {
    const groups = [COMMON, [PARAMS, ...access]]
    return this.device.kernel(file, variant && isKeeping(variant) ? [...groups, ['write']] : groups, variant)
  }

  addLater(make: () => Launch): void {
    const at = this.launches.push(NOTHING) - 1
    this.#later.push(() => {
      this.launches[at] = make()
    })
  }

  /** All is recorded. */
  finish(): void {
    this.isRecorded = true
    for (const make of this.#later) make()
    this.#later = []
  }

  /** One kernel, whose workgroups are counted per step. */
  launch(
    file: string,
    words: readonly Word[],
    buffers: readonly (readonly [Access, GPUBuffer])[],
    grid: (step: StepShape) => readonly [x: number, y: number],
    variant: KernelVariant = {},
  ): void {
    this.launches.push(this.#launchOf(file, words, buffers, grid, variant))
  }

  #launchOf(
    file: string,
    words: readonly Word[],
    buffers: readonly (readonly [Access, GPUBuffer])[],
    grid: (step: StepShape) => readonly [x: number, y: number],
    variant: KernelVariant,
  ): Launch {
    const access = buffers.map(([one]) => one)
    const kernel = this.kernel(file, access, variant)
    const bindings = this.bind(
      access,
      this.params(words),
      buffers.map(([, buffer]) => buffer),
    )
    return {
      bindings,
      plan(step) {
        const [x, y] = grid(step)
        return x > 0 && y > 0 ? { kernel, x, y } : null
      },
    }
  }

  /** One whose outputs are kept for products that ask for it: for few rows as bytes, for more as f16. */
  launchKept(
    keeper: Keeper,
    file: string,
    words: (as: KeptAs) => readonly Word[],
    buffers: readonly (readonly [Access, GPUBuffer])[],
    grid: (step: StepShape) => readonly [x: number, y: number],
    { rows = ({ numTokens }) => numTokens, ofStep = () => ({}), ...variant }: KeptVariant = {},
  ): void {
    const access = buffers.map(([one]) => one)
    const isFew = (step: StepShape) => rows(step) < LEAST_BY_MATRICES
    const made = new Map<string, Kernel>()
    const kernelOf = (kept: KeptAs | 'none', own: Constants) => {
      const key = `${kept} ${Object.values(own).join()}`
      let kernel = made.get(key)
      if (kernel === undefined) {
        const all = { ...variant, constants: { ...variant.constants, ...own } }
        kernel = this.kernel(file, access, kept === 'none' ? keepingNone(all) : keeper.variant(all, kept))
        made.set(key, kernel)
      }
      return kernel
    }
    const launchOf = (as: KeptAs, keptIn: (step: StepShape) => KeptAs | 'none' | null): Launch => ({
      bindings: this.bind(
        access,
        this.params(words(as)),
        buffers.map(([, buffer]) => buffer),
      ),
      plan: (step) => {
        const [x, y] = grid(step)
        const kept = keptIn(step)
        if (kept === null || x === 0 || y === 0) return null
        const kernel = kernelOf(kept, ofStep(step, isFew(step)))
        return { kernel, x, y, ...(kept !== 'none' && keeper.bound(kept)) }
      },
    })
    this.addLater(() =>
      launchOf('halves', (step) => {
        if (isFew(step)) return keeper.keeps('bytes') ? null : 'none'
        return keeper.keeps('halves') ? 'halves' : 'none'
      }),
    )
    this.addLater(() => (keeper.keeps('bytes') ? launchOf('bytes', (step) => (isFew(step) ? 'bytes' : null)) : NOTHING))
  }

  /** An op that writes tensors of so many columns, which it may keep. */
  keeper(tensors: readonly number[], columns: number, canKeepBytes = true): Keeper {
    const keeper = new Keeper(this, { halves: 'others', bytes: canKeepBytes ? 'bytesOfOthers' : null })
    for (const start of tensors) keeper.writes(start, columns)
    return keeper
  }

  dispose(): void {
    for (const one of Object.values(this.halves)) one.dispose()
    for (const buffer of this.own) this.device.free(buffer)
  }
}
