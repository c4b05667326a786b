/**
 * The form of a recorded op on cuda: something that puts its kernels on the stream for a step of a given size. Shapes
 * are those of the step's bucket; kernels read the true counts from the step's header, so that padding does nothing.
 */
import type { NativeArena } from './arena.ts'
import type { CudaDevice } from './device.ts'
import type { Gemm } from './gemm.ts'
import type { Kernel } from './kernel.ts'
import type { KernelArg, KernelArgs } from './kernel-args.ts'
import type { Dim3, LaunchOptions } from './launch.ts'
import type { StepBuffer } from './step-buffer.ts'

/** Sizes that launches are made for; the batch's own are not larger. */
export interface StepShape {
  readonly tokens: number
  readonly rows: number
  readonly logits: number
  readonly samples: number
  /** Every row feeds one token. */
  readonly isDecode: boolean
  /** Rows of LONG_ROW tokens or more. */
  readonly longRows: number
}

/** Rows of so many tokens or more are worth kernels of their own. */
export const LONG_ROW = 32

/** Makes everything a command needs beforehand, so that its run can be captured. */
export interface Command {
  /** Plans of the matrix products of a step of this shape, and kernels that only such a step needs. */
  prepare?(gemm: Gemm, shape: StepShape): void
  run(stream: StepStream, shape: StepShape): void
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
