/**
 * Kernel launches: one CUlaunchConfig in native memory, filled in for every launch, so that a launch allocates
 * nothing. Knows nothing of what the kernels compute.
 */
import { assert } from '../../../errors.ts'
import type { Pointer } from '../../ffi.ts'
import type { NativeArena, NativeBlock } from '../driver/arena.ts'
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

/** Offsets in CUlaunchConfig (cuda.h): grid 0, block 12, shared bytes 24, stream 32, attributes 40, their number 48. */
const CONFIG_BYTES = 56
/** CUlaunchAttribute: id at 0, value at 8. */
const ATTRIBUTE_BYTES = 72
const MAX_ATTRIBUTES = 3
/** CUlaunchAttributeID */
const COOPERATIVE = 2
const CLUSTER_DIMENSION = 4
const PROGRAMMATIC_STREAM_SERIALIZATION = 6
/** CUfunction_attribute */
const MAX_DYNAMIC_SHARED = 8
/** More dynamic shared memory than this has to be asked for per kernel. */
const DEFAULT_SHARED_BYTES = 48 << 10

export class Launcher {
  readonly #driver: CudaDriver
  readonly #config: NativeBlock
  readonly #attributes: NativeBlock
  readonly #hasHopperLaunch: boolean
  readonly #sharedLimits = new Map<Kernel, number>()

  constructor(driver: CudaDriver, arena: NativeArena, stream: Pointer, computeCapability: readonly [number, number]) {
    this.#driver = driver
    this.#config = arena.allocate(CONFIG_BYTES)
    this.#attributes = arena.allocate(MAX_ATTRIBUTES * ATTRIBUTE_BYTES)
    this.#config.view.setBigUint64(32, stream, true)
    this.#config.view.setBigUint64(40, this.#attributes.address, true)
    this.#hasHopperLaunch = computeCapability[0] >= 9
  }

  launch(
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    sharedBytes: number,
    args: KernelArgs,
    options: LaunchOptions = NO_OPTIONS,
  ): void {
    this.#configure(kernel, grid, block, sharedBytes, options)
    const driver = this.#driver
    driver.lastLaunch = kernel.label
    const status = driver.functions.cuLaunchKernelEx(this.#config.address, kernel.handle, args.address, null)
    if (status === 0) return
    throw driver.error(
      status,
      `launch of ${kernel.label}, grid [${grid}], block [${block}], ${sharedBytes} bytes of shared memory`,
    )
  }

  /** Clusters of so many blocks, of so many threads each, that the device runs at once. */
  clustersAtOnce(kernel: Kernel, threads: number, sharedBytes: number, cluster: number): number {
    const out = new Int32Array(1)
    this.#configure(kernel, [cluster, 1, 1], [threads, 1, 1], sharedBytes, { cluster })
    this.#driver.call('cuOccupancyMaxActiveClusters', out, kernel.handle, this.#config.address)
    return out[0]!
  }

  #configure(kernel: Kernel, grid: Dim3, block: Dim3, sharedBytes: number, options: LaunchOptions): void {
    if (sharedBytes > DEFAULT_SHARED_BYTES) this.allowShared(kernel, sharedBytes)
    const { view } = this.#config
    for (let i = 0; i < 3; i++) {
      view.setUint32(4 * i, grid[i]!, true)
      view.setUint32(12 + 4 * i, block[i]!, true)
    }
    view.setUint32(24, sharedBytes, true)
    view.setUint32(48, this.#writeAttributes(kernel, options), true)
  }

  #writeAttributes(kernel: Kernel, { pdl, cluster = 1, cooperative }: LaunchOptions): number {
    let count = 0
    if (pdl && this.#hasHopperLaunch) this.#attribute(count++, PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0, 0)
    if (cooperative) this.#attribute(count++, COOPERATIVE, 1, 0, 0)
    if (cluster > 1) {
      assert(this.#hasHopperLaunch, `${kernel.label}: clusters need compute capability 9.0`)
      this.#attribute(count++, CLUSTER_DIMENSION, cluster, 1, 1)
    }
    return count
  }

  #attribute(index: number, id: number, x: number, y: number, z: number): void {
    const { view } = this.#attributes
    const at = index * ATTRIBUTE_BYTES
    view.setUint32(at, id, true)
    view.setUint32(at + 8, x, true)
    view.setUint32(at + 12, y, true)
    view.setUint32(at + 16, z, true)
  }

  /** Raises a kernel's limit of dynamic shared memory. */
  allowShared(kernel: Kernel, bytes: number): void {
    if (bytes <= (this.#sharedLimits.get(kernel) ?? 0)) return
    this.#driver.call('cuFuncSetAttribute', kernel.handle, MAX_DYNAMIC_SHARED, bytes)
    this.#sharedLimits.set(kernel, bytes)
  }
}
