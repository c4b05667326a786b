/**
 * Kernels, and their sources: the .wgsl files of kernels/webgpu with what they include, and with their repeated lines written
 * out. Knows no device.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import { longCall } from '../../threads/work-done.ts'
import { readKernelFile } from './kernel-files.ts'

export type Constants = Readonly<Record<string, number>>

/**
 * A file with its includes: `#include "name.wgsl"`, or `#include NAME` for a file that the variant chooses; once, but with a
 * space before it as often as it stands there, for lines within functions. The lines between
 * `#repeat i COUNT` and `#end i` come as often as the constant says, with $i for 0, 1, …: drivers differ in which loops they
 * unroll, and an array that is indexed in a loop is not kept in registers.
 */
export function readSource(file: string, variant: Readonly<Record<string, string>>, constants: Constants): string {
  const code = expand(`${file}.wgsl`, variant, new Set())
  const own = [...code.matchAll(/^const (\w+) = (\d+)u;$/gm)].map((m) => [m[1]!, Number(m[2])])
  return repeat(code, { ...Object.fromEntries(own), ...constants })
}

function expand(name: string, variant: Readonly<Record<string, string>>, done: Set<string>): string {
  done.add(name)
  return readKernelFile(name).replace(
    /^( *)#include (?:"([^"]+)"|(\w+))$/gm,
    (_, space: string, quoted: string | undefined, chosen: string | undefined) => {
      const included = quoted ?? `${variant[chosen!]}.wgsl`
      return space === '' && done.has(included) ? '' : expand(included, variant, done)
    },
  )
}

/** The outermost repeats first: their lines may hold others. */
function repeat(code: string, constants: Constants): string {
  return code.replace(
    /^ *#repeat (\w) (\w+)\n([\s\S]*?)^ *#end \1\n/gm,
    (_, name: string, count: string, lines: string) => {
      const times = constants[count]
      assert(times !== undefined, `#repeat ${name}: ${count} is no constant`)
      const copies = Array.from({ length: times }, (_, i) => lines.replaceAll(`$${name}`, `${i}`))
      return repeat(copies.join(''), constants)
    },
  )
}

/** A compute shader of its own layout. */
export class Kernel {
  readonly #gpu: GPUDevice
  readonly #descriptor: GPUComputePipelineDescriptor
  #pipeline: GPUComputePipeline | null = null

  constructor(gpu: GPUDevice, descriptor: GPUComputePipelineDescriptor) {
    this.#gpu = gpu
    this.#descriptor = descriptor
  }

  /** Compiled here and now if it is not: whoever asks waits for that. */
  get pipeline(): GPUComputePipeline {
    this.#pipeline ??= longCall(() => this.#gpu.createComputePipeline(this.#descriptor))
    return this.#pipeline
  }

  /** Beside others, in threads of the driver. What fails here fails again, and is reported, where it is needed. */
  async compile(): Promise<void> {
    this.#pipeline ??= await this.#gpu.createComputePipelineAsync(this.#descriptor).catch(() => null)
  }
}
