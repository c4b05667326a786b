/**
 * The form of a recorded op on cuda: something that puts its kernels on the stream for a step of a given size. Shapes
 * are those of the step's bucket; kernels read the true counts from the step's header, so that padding does nothing.
 */

import type { Batch } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { NativeArena } from '../driver/arena.ts'
import type { Gemm } from '../gemm/gemm.ts'
import type { KernelArg, KernelArgs } from '../kernel/args.ts'
import type { Kernel } from '../kernel/kernel.ts'
import type { Dim3, LaunchOptions } from '../kernel/launch.ts'
import type { RowKinds, StepBuffer } from './buffer.ts'

/** Sizes that launches are made for; the batch's own are not larger. */
export interface StepShape extends RowKinds {
  readonly tokens: number
  readonly rows: number
  readonly logits: number
  readonly samples: number
  /** Draws of a row that wait for one another, beyond the first. */
  readonly waits: number
}

/** Rows of at least this many tokens get kernels of their own. */
export const LONG_ROW = 32

/** Tokens that all layers are one launch for at most: few-rows.cu, and from three on eight-rows.cu. */
export const FEW_TOKENS = 8

/** Every row feeds one token. */
export function isDecode({ rows, singles }: StepShape): boolean {
  return rows === singles
}

/** Makes everything a command needs beforehand, so that its run can be captured. */
export interface Command {
  /** Plans of the matrix products of a step of this shape, and kernels that only such a step needs. */
  prepare?(gemm: Gemm, shape: StepShape): void
  /** Puts what it needs of the batch beside the step's buffer on the stream, ahead of the step. */
  upload?(batch: Batch): void
  run(stream: StepStream, shape: StepShape): void
  /** Uploads what comes after the step was launched. */
  uploadLater?(batch: Batch): void
  /** Runs the rest of a step, `samples` draws, when that has come. */
  runLater?(stream: StepStream, samples: number): void
  /** Frees memory of its own. */
  dispose?(): void
}

/** Every kernel of a step waits for the one before by itself (wait_for_previous of common.cuh). */
const OVERLAPPED: LaunchOptions = { pdl: true }

/** The stream of one step buffer: a launch site's arguments are built at its first launch and kept. */
export class StepStream {
  readonly device: CudaDevice
  readonly gemm: Gemm
  readonly buffer: StepBuffer
  readonly step: Uint8Array
  readonly #arena: NativeArena
  readonly #args = new Map<object, KernelArgs>()

  constructor(device: CudaDevice, gemm: Gemm, buffer: StepBuffer, arena: NativeArena) {
    this.device = device
    this.gemm = gemm
    this.buffer = buffer
    this.step = buffer.step()
    this.#arena = arena
  }

  /** `site` stands for one set of arguments: those that `args` gives at the first launch. */
  launch(
    site: object,
    kernel: Kernel,
    grid: Dim3,
    threads: number,
    args: () => readonly KernelArg[],
    options: LaunchOptions & { readonly sharedBytes?: number } = OVERLAPPED,
  ): void {
    if (grid[0] === 0 || grid[1] === 0) return
    let list = this.#args.get(site)
    if (list === undefined) {
      list = this.device.args([this.step, ...args()], this.#arena)
      this.#args.set(site, list)
    }
    const { sharedBytes = 0 } = options
    this.device.launch(kernel, grid, [threads, 1, 1], sharedBytes, list, options)
  }
}
