/**
 * The parts of CUDA on this machine: driver, GPUs, compiler, cuBLASLt, and what is missing. It opens no context, and no
 * library besides the driver. For `skein doctor` and for the choice of a device.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { type DeviceInfo, isCapable, listDevices, MIN_CAPABILITY } from './driver/device-info.ts'
import { describeMissing, findLibrary, findNvcc, MACHINE, type SearchRoots } from './driver/libraries.ts'
import { CUDA } from './kinds/cuda.ts'

export interface CudaReport {
  readonly devices: readonly DeviceInfo[]
  /** A card is in the machine, whether or not the driver sees it. */
  readonly hasCard: boolean
  readonly nvrtc: string | null
  readonly nvcc: string | null
  readonly cublasLt: string | null
  /** Reasons why the cuda backend cannot be used, one sentence each with a remedy; empty when it can. */
  readonly problems: readonly CudaProblem[]
}

interface CudaProblem {
  readonly part: 'driver' | 'compiler' | 'cublasLt'
  readonly message: string
}

const DISPLAY_CLASS = '0x03'
const NVIDIA_VENDOR = '0x10de'

export function cudaReport(): CudaReport {
  const { devices, problem } = look()
  const hasCard = devices.length > 0 || hasNvidiaCard()
  // Without a driver there is nothing to fit the libraries to.
  if (problem !== null) {
    const none = { nvrtc: null, nvcc: findNvcc(MACHINE), cublasLt: null }
    return { devices, hasCard, ...none, problems: [problem] }
  }
  const driverMajor = Math.floor((devices[0]?.driverVersion ?? 0) / 1000)
  return { devices, hasCard, ...lookForLibraries(driverMajor, MACHINE) }
}

/** Whether a card, its driver and all libraries are there. */
export function hasUsableCuda(): boolean {
  const { hasCard, problems } = cudaReport()
  return hasCard && problems.length === 0
}

/** Finds the libraries that a driver of this CUDA major version needs. */
export function lookForLibraries(driverMajor: number, roots: SearchRoots) {
  const [compiler, product] = [findLibrary('nvrtc', driverMajor, roots), findLibrary('cublasLt', driverMajor, roots)]
  const nvrtc = compiler.found?.path ?? null
  const nvcc = findNvcc(roots)
  const problems: CudaProblem[] = []
  if (nvrtc === null && nvcc === null)
    problems.push({ part: 'compiler', message: describeMissing('nvrtc', driverMajor, compiler) })
  if (product.found === null)
    problems.push({ part: 'cublasLt', message: describeMissing('cublasLt', driverMajor, product) })
  return { nvrtc, nvcc, cublasLt: product.found?.path ?? null, problems }
}

function look(): { devices: readonly DeviceInfo[]; problem: CudaProblem | null } {
  try {
    const devices = listDevices(CUDA.open())
    if (devices.some(isCapable)) return { devices, problem: null }
    const found = devices.map(({ name, computeCapability }) => `${name} (${computeCapability.join('.')})`).join(', ')
    const message = `no GPU of compute capability ${MIN_CAPABILITY.join('.')} or later; found: ${found || 'none'}`
    return { devices, problem: { part: 'driver', message } }
  } catch (error) {
    const { message } = SkeinError.from(error)
    return { devices: [], problem: { part: 'driver', message } }
  }
}

function hasNvidiaCard(): boolean {
  const folder = '/sys/bus/pci/devices'
  try {
    return readdirSync(folder).some(
      (card) =>
        readFileSync(join(folder, card, 'vendor'), 'utf8').startsWith(NVIDIA_VENDOR) &&
        readFileSync(join(folder, card, 'class'), 'utf8').startsWith(DISPLAY_CLASS),
    )
  } catch {
    return false
  }
}
