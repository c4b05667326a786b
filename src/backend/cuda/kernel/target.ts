/** The interface of a compiler of kernels, and what it compiles for. */
import type { DeviceInfo } from '../driver/device-info.ts'
import type { KernelSource } from './source.ts'

/** What is compiled for: machine code of one chip, or text that the driver turns into it. */
export interface Target {
  /** sm_90a, compute_90, gfx942 */
  readonly name: string
  readonly kind: 'cubin' | 'ptx'
}

/** Machine code of a chip. */
export function nativeTarget(chip: string): Target {
  return { name: chip, kind: 'cubin' }
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
  targetOf(machine: ImageMachine): Target
  compile(input: CompilerInput): Uint8Array
}

/** Who brings one: a kind of driver (kinds/). */
export interface CompilerSource {
  readonly name: string
  openCompiler(driverVersion: number): Compiler
}

/** What an image is made for and by. */
export interface ImageMachine
  extends Pick<DeviceInfo, 'chip' | 'computeCapability' | 'isSimulated' | 'codeCapability'> {
  /** 13000 for CUDA 13.0: what the driver can run. */
  readonly driverVersion: number
}

/** How an image is made here, and where it is kept. */
export interface ImagePlan {
  readonly compiler: Compiler
  readonly input: CompilerInput
  readonly path: string
}
