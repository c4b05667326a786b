/** A CUDA device for tests, or the reason why there is none. */
import { join } from 'node:path'
import { afterAll, beforeAll, describe } from 'vitest'
import { type CudaBackend, type CudaOptions, createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { CudaDevice, type DeviceOptions } from '../../src/backend/cuda/device/device.ts'
import { simulated } from '../../src/backend/cuda/driver/cards.ts'
import { type DeviceInfo, describeDevice, listDevices } from '../../src/backend/cuda/driver/device-info.ts'
import { CUDA } from '../../src/backend/cuda/kinds/cuda.ts'
import { SkeinError } from '../../src/errors.ts'

export const PROBES = join(import.meta.dirname, 'kernels')

function whyNot(): string | null {
  try {
    return listDevices(CUDA.open()).length > 0 ? null : 'the driver shows no GPU'
  } catch (error) {
    return SkeinError.from(error).message
  }
}

const reason = whyNot()

/** A group of tests that need a GPU; without one it is skipped, with the reason in its name. */
export function describeCuda(name: string, body: () => void): void {
  if (reason === null) describe(name, body)
  else describe.skip(`${name} (no GPU: ${reason.split(':')[0]})`, body)
}

/** The card that tests run on: within the limits of another if SKEIN_SIMULATE_CARD names one. */
export function cardInfo(): DeviceInfo {
  return simulated(describeDevice(CUDA.open(), 0))
}

/** True as well where no test runs. */
export function hasFp8(): boolean {
  if (reason !== null) return true
  const [major, minor] = cardInfo().computeCapability
  return 10 * major + minor >= 89
}

/** The backend of a group of tests, which exists while they run. */
export function backendOfGroup(options: CudaOptions = {}): () => CudaBackend {
  let backend: CudaBackend
  beforeAll(() => {
    backend = createCudaBackend(options)
  })
  afterAll(() => backend.dispose())
  return () => backend
}

export function openDevice(options: Partial<DeviceOptions> = {}): CudaDevice {
  return CudaDevice.open({ device: 0, kernelFolder: PROBES, ...options })
}

/** A small repeatable stream of numbers in [−1, 1). */
export function randomNumbers(count: number, seed = 1): Float32Array {
  let state = seed
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 31 - 1
  })
}

export function floatsOf(bytes: Uint8Array<ArrayBuffer>): Float32Array {
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)
}

export function intsOf(bytes: Uint8Array<ArrayBuffer>): Int32Array {
  return new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)
}
