/**
 * The driver of a card that is not here: its memory has addresses and no bytes, its kernels have names, and nothing runs. A
 * model is recorded over it to learn which kernels it would have.
 */
import { SkeinError } from '../../../errors.ts'
import { allocateMemory, freeMemory, type Pointer } from '../../ffi.ts'
import { CudaDriver, type DriverFunctions } from '../driver/driver.ts'
import type { Kernel } from '../kernel/kernel.ts'
import { CUDA_WORDS } from './cuda.ts'
import { CudaLaunchForm } from './cuda-launch.ts'
import type { DriverKind } from './kind.ts'

/** Alignment of memory that the driver allocates. */
const PAGE_BYTES = 2n << 20n

export const ABSENT: DriverKind = {
  name: 'absent',
  runs: false,
  hasCublasLt: false,
  open: (info) => new CudaDriver(absentFunctions(info?.totalBytes ?? 0), CUDA_WORDS),
  openCompiler() {
    throw new SkeinError('backend_unavailable', 'kernels of a card that is not here are named and not compiled')
  },
  launchForm: (...args) => new CudaLaunchForm(...args),
}

/** Told of every launch, with the threads of a block and the dynamic shared memory that it asks for. */
export type LaunchListener = (kernel: Kernel, threads: number, sharedBytes: number) => void

export function absentKind(onLaunch: LaunchListener): DriverKind {
  return {
    ...ABSENT,
    launchForm(...args) {
      const form = ABSENT.launchForm(...args)
      return {
        launch(kernel, grid, block, sharedBytes, ...rest) {
          onLaunch(kernel, block[0] * block[1] * block[2], sharedBytes)
          return form.launch(kernel, grid, block, sharedBytes, ...rest)
        },
        clustersAtOnce: (...asked) => form.clustersAtOnce(...asked),
      }
    },
  }
}

/** Those that are not written out succeed without doing anything. */
export function absentFunctions(totalBytes: number): DriverFunctions {
  let next = PAGE_BYTES
  const handOut = (out: unknown, bytes = 1) => {
    // Every function of the table that hands something out does so through its first argument, 64 bits wide.
    ;(out as BigUint64Array)[0] = next
    next += PAGE_BYTES * ((BigInt(bytes) + PAGE_BYTES - 1n) / PAGE_BYTES)
    return 0
  }
  const made: Partial<DriverFunctions> = {
    cuDevicePrimaryCtxRetain: (out) => handOut(out),
    cuStreamCreate: (out) => handOut(out),
    cuEventCreate: (out) => handOut(out),
    cuModuleLoadData: (out) => handOut(out),
    cuModuleGetFunction: (out) => handOut(out),
    cuMemAlloc_v2: (out, bytes) => handOut(out, Number(bytes)),
    cuMemGetInfo_v2(free) {
      ;(free as BigUint64Array)[0] = BigInt(totalBytes)
      return 0
    },
    // The host writes here.
    cuMemHostAlloc(out, bytes) {
      ;(out as BigUint64Array)[0] = allocateMemory(Number(bytes))
      return 0
    },
    cuMemFreeHost(address) {
      freeMemory(address as Pointer)
      return 0
    },
    cuOccupancyMaxActiveBlocksPerMultiprocessor(out) {
      ;(out as Int32Array)[0] = 1
      return 0
    },
    // As many clusters of eight blocks as an H200 runs: the number decides which kernels are made.
    cuOccupancyMaxActiveClusters(out) {
      ;(out as Int32Array)[0] = 15
      return 0
    },
  }
  const functions = new Proxy(made, { get: (target, name) => Reflect.get(target, name) ?? (() => 0) })
  // What is not in `made` is a function, too.
  return functions as DriverFunctions
}
