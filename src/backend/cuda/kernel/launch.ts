/**
 * Kernel launches: what a launch needs before the driver's own way to make it. Knows nothing of what the kernels compute.
 */
import { SkeinError } from '../../../errors.ts'
import type { Pointer } from '../../ffi.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { KernelArgs } from './args.ts'
import type { Kernel } from './kernel.ts'

export type Dim3 = readonly [x: number, y: number, z: number]

export interface LaunchOptions {
  /**
   * Programmatic dependent launch: the kernel may start while the one before it still runs, and must execute
   * griddepcontrol.wait before it reads or writes what that one touches. Without effect before capability 9.0.
   */
  readonly pdl?: boolean
  /** Blocks of a cluster, along x, eight at the most; a divisor of grid x. Needs capability 9.0. */
  readonly cluster?: number
  /** All blocks resident at once, for kernels with a barrier over the grid. */
  readonly cooperative?: boolean
}

const NO_OPTIONS: LaunchOptions = {}

/** How a kind of driver puts a kernel on a stream. A launch allocates nothing. */
export interface LaunchForm {
  /** The driver's status. */
  launch(kernel: Kernel, grid: Dim3, block: Dim3, sharedBytes: number, args: Pointer, options: LaunchOptions): number
  /** Clusters of so many blocks, of so many threads each, that the device runs at once. */
  clustersAtOnce(kernel: Kernel, threads: number, sharedBytes: number, cluster: number): number
}

/** More dynamic shared memory than this has to be asked for per kernel. */
const DEFAULT_SHARED_BYTES = 48 << 10

export class Launcher {
  readonly #driver: CudaDriver
  readonly #form: LaunchForm
  /** Bytes of shared memory that a block can have: of a simulated card fewer than the driver gives. */
  readonly #mostShared: number
  readonly #sharedLimits = new Map<Kernel, number>()

  constructor(driver: CudaDriver, form: LaunchForm, mostShared: number) {
    this.#driver = driver
    this.#form = form
    this.#mostShared = mostShared
  }

  launch(
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    sharedBytes: number,
    args: KernelArgs,
    options: LaunchOptions = NO_OPTIONS,
  ): void {
    if (kernel.sharedBytes + sharedBytes > this.#mostShared) throw this.#refusal(kernel, sharedBytes)
    if (sharedBytes > DEFAULT_SHARED_BYTES) this.allowShared(kernel, sharedBytes)
    const driver = this.#driver
    driver.lastLaunch = kernel.label
    const status = this.#form.launch(kernel, grid, block, sharedBytes, args.address, options)
    if (status === 0) return
    throw driver.error(
      status,
      `launch of ${kernel.label}, grid [${grid}], block [${block}], ${sharedBytes} bytes of shared memory`,
    )
  }

  #refusal({ label, sharedBytes }: Kernel, more: number): SkeinError {
    const has = `a block of this card has ${this.#mostShared}`
    return new SkeinError('internal', `${label} needs ${sharedBytes} + ${more} bytes of shared memory; ${has}`)
  }

  clustersAtOnce(kernel: Kernel, threads: number, sharedBytes: number, cluster: number): number {
    if (sharedBytes > DEFAULT_SHARED_BYTES) this.allowShared(kernel, sharedBytes)
    return this.#form.clustersAtOnce(kernel, threads, sharedBytes, cluster)
  }

  /** Raises a kernel's limit of dynamic shared memory. */
  allowShared(kernel: Kernel, bytes: number): void {
    if (bytes <= (this.#sharedLimits.get(kernel) ?? 0)) return
    this.#driver.call('cuFuncSetAttribute', kernel.handle, this.#driver.words.kernelAttributes.mostSharedBytes, bytes)
    this.#sharedLimits.set(kernel, bytes)
  }
}
