/** Launches by CUDA's driver: one CUlaunchConfig in native memory, filled in for every launch. */
import { assert } from '../../../errors.ts'
import type { Pointer } from '../../ffi.ts'
import type { NativeArena, NativeBlock } from '../driver/arena.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { Kernel } from '../kernel/kernel.ts'
import type { Dim3, LaunchForm, LaunchOptions } from '../kernel/launch.ts'

/** Offsets in CUlaunchConfig (cuda.h): grid 0, block 12, shared bytes 24, stream 32, attributes 40, their number 48. */
const CONFIG_BYTES = 56
/** CUlaunchAttribute: id at 0, value at 8. */
const ATTRIBUTE_BYTES = 72
const MAX_ATTRIBUTES = 3
/** CUlaunchAttributeID */
const COOPERATIVE = 2
const CLUSTER_DIMENSION = 4
const PROGRAMMATIC_STREAM_SERIALIZATION = 6

export class CudaLaunchForm implements LaunchForm {
  readonly #driver: CudaDriver
  readonly #config: NativeBlock
  readonly #attributes: NativeBlock
  readonly #hasHopperLaunch: boolean

  constructor(driver: CudaDriver, arena: NativeArena, stream: Pointer, computeCapability: readonly [number, number]) {
    this.#driver = driver
    this.#config = arena.allocate(CONFIG_BYTES)
    this.#attributes = arena.allocate(MAX_ATTRIBUTES * ATTRIBUTE_BYTES)
    this.#config.view.setBigUint64(32, stream, true)
    this.#config.view.setBigUint64(40, this.#attributes.address, true)
    this.#hasHopperLaunch = computeCapability[0] >= 9
  }

  launch(kernel: Kernel, grid: Dim3, block: Dim3, sharedBytes: number, args: Pointer, options: LaunchOptions): number {
    this.#configure(kernel, grid, block, sharedBytes, options)
    return this.#driver.functions.cuLaunchKernelEx(this.#config.address, kernel.handle, args, null)
  }

  clustersAtOnce(kernel: Kernel, threads: number, sharedBytes: number, cluster: number): number {
    const out = new Int32Array(1)
    this.#configure(kernel, [cluster, 1, 1], [threads, 1, 1], sharedBytes, { cluster })
    this.#driver.call('cuOccupancyMaxActiveClusters', out, kernel.handle, this.#config.address)
    return out[0]!
  }

  #configure(kernel: Kernel, grid: Dim3, block: Dim3, sharedBytes: number, options: LaunchOptions): void {
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
}
