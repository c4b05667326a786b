/**
 * A kind of driver: all that differs between the makers of GPUs whose kernels are written in CUDA's language. Another maker's
 * is a file like cuda.ts and a line in kinds.ts.
 */
import type { Pointer } from '../../ffi.ts'
import type { NativeArena } from '../driver/arena.ts'
import type { DeviceInfo } from '../driver/device-info.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { LaunchForm } from '../kernel/launch.ts'
import type { CompilerSource } from '../kernel/target.ts'

/** With the compiler of its kernels, and the name of what that compiles for. */
export interface DriverKind extends CompilerSource {
  /** Whether kernels run. */
  readonly runs: boolean
  /** Whether products of many tokens are cuBLASLt's; else only steps of few tokens can be multiplied. */
  readonly hasCublasLt: boolean
  /** Its functions under CUDA's names, and its numbers; fails where there is no driver. `info`: of a card that is not here. */
  open(info?: DeviceInfo): CudaDriver
  /** How a kernel is put on a stream. */
  launchForm(
    driver: CudaDriver,
    arena: NativeArena,
    stream: Pointer,
    computeCapability: DeviceInfo['computeCapability'],
  ): LaunchForm
}
