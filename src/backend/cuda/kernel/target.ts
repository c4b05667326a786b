/** The interface of a compiler of kernels, and what it compiles for. */
import type { KernelSource } from './source.ts'

/** What is compiled for: machine code of one chip, or PTX that the driver turns into it. */
export interface Target {
  /** sm_90a, compute_90 */
  readonly name: string
  readonly kind: 'cubin' | 'ptx'
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
