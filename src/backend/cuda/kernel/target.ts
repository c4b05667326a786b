/** The interface of a compiler of kernels, and what it compiles for. */
import type { DeviceInfo } from '../driver/device-info.ts'
import type { KernelSource } from './source.ts'

/** What is compiled for: machine code of one chip, or PTX that the driver turns into it. */
export interface Target {
  /** sm_90a, compute_90 */
  readonly name: string
  readonly kind: 'cubin' | 'ptx'
}

/** Capabilities whose own instructions (wgmma, setmaxnreg) need the suffixed target. */
const SUFFIXED = new Set([90])

/** Machine code of a chip. */
export function nativeTarget([major, minor]: readonly [number, number]): Target {
  const capability = 10 * major + minor
  return { name: `sm_${capability}${SUFFIXED.has(capability) ? 'a' : ''}`, kind: 'cubin' }
}

export interface CompilerInput {
  readonly source: KernelSource
  readonly target: Target
  readonly options: readonly string[]
}

export interface Compiler {
  /** "NVRTC 13.0": part of the key of what it made. */
  readonly description: string
  readonly path: string
  /** Compute capabilities it knows, times ten. */
  readonly capabilities: readonly number[]
  compile(input: CompilerInput): Uint8Array
}

/** What an image is made for and by. */
export interface ImageMachine extends Pick<DeviceInfo, 'computeCapability' | 'isSimulated'> {
  /** 13000 for CUDA 13.0: what the driver can run. */
  readonly driverVersion: number
}

/** How an image is made here, and where it is kept. */
export interface ImagePlan {
  readonly compiler: Compiler
  readonly input: CompilerInput
  readonly path: string
}
