/** NVIDIA's driver. Its library is opened at the first use, so a machine without CUDA runs none of this. */
import { SkeinError } from '../../../errors.ts'
import { bindAll, type NativeLibrary, openLibrary } from '../../ffi.ts'
import { chipName } from '../driver/cards.ts'
import { CudaDriver, type DriverFunctions, type DriverWords, describeFailure, SIGNATURES } from '../driver/driver.ts'
import { openCompiler } from '../kernel/compiler.ts'
import { CudaLaunchForm } from './cuda-launch.ts'
import type { DriverKind } from './kind.ts'

const LIBRARY = 'libcuda.so.1'
const INSTALL =
  'install the NVIDIA driver (535 or later; Debian, Ubuntu: apt-get install nvidia-driver), in a container start it with --gpus all'

/** CUdevice_attribute */
const CAPABILITY_MAJOR = 75
const CAPABILITY_MINOR = 76

export const CUDA_WORDS: DriverWords = {
  name: 'cuda',
  // CUdevice_attribute, CUfunction_attribute, CUresult
  attributes: { numSms: 16, l2Bytes: 38, sharedBytes: 97 },
  kernelAttributes: { sharedBytes: 1, registers: 4, mostSharedBytes: 8 },
  statuses: {
    outOfMemory: 2,
    notReady: 600,
    isReached: 704,
    isLocked: 712,
    sticky: new Set([...[214, 220, 226], ...[700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999]]),
    badImage: new Set([200, 209, 218]),
    newerImage: 222,
  },
  blockingHint: 'CUDA_LAUNCH_BLOCKING=1 makes the error surface at the kernel at fault',
  chipOf(attribute) {
    const computeCapability = [attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)] as const
    return { computeCapability, chip: chipName(computeCapability) }
  },
}

let opened: DriverFunctions | undefined

export const CUDA: DriverKind = {
  name: 'cuda',
  runs: true,
  hasCublasLt: true,
  open() {
    opened ??= initialise(bindAll(openDriverLibrary(), SIGNATURES))
    return new CudaDriver(opened, CUDA_WORDS)
  },
  openCompiler: (driverVersion) => openCompiler(Math.floor(driverVersion / 1000)),
  launchForm: (...args) => new CudaLaunchForm(...args),
}

function openDriverLibrary(): NativeLibrary {
  try {
    return openLibrary(LIBRARY)
  } catch (cause) {
    throw new SkeinError('backend_unavailable', `no CUDA driver: ${LIBRARY} is not on the loader's path; ${INSTALL}`, {
      cause,
    })
  }
}

function initialise(functions: DriverFunctions): DriverFunctions {
  const status = functions.cuInit(0)
  if (status === 0) return functions
  const { message } = describeFailure(functions, CUDA_WORDS, status, 'cuInit', null)
  throw new SkeinError('backend_unavailable', `the CUDA driver finds no GPU it can use: ${message}; see nvidia-smi`)
}
