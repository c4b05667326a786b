/**
 * Kernels by file, name and defines: each module is compiled (or found in the cache) and loaded once. Owns the loaded
 * modules; knows no arguments.
 */
import { SkeinError } from '../../../errors.ts'
import { longCall } from '../../../threads/work-done.ts'
import type { Pointer } from '../../ffi.ts'
import type { CudaDriver } from '../driver/driver.ts'

/** -D macros of a compilation: they choose a variant of a kernel. */
export type Defines = Readonly<Record<string, string | number>>

export interface Kernel {
  readonly handle: Pointer
  /** "wkv7.cu: wkv7_decode {N: 64}" */
  readonly label: string
  readonly registers: number
  /** Of shared memory, beside what a launch adds. */
  readonly sharedBytes: number
}

/** A file of kernels/cuda and its macros. */
export type KernelVariant = readonly [file: string, defines: Defines]

/** Machine code for a file of kernels/cuda with the given defines. */
export interface KernelImages {
  image(file: string, defines: Defines): Uint8Array
  /** Begins to compile, on other threads, what is not to be had otherwise; returns how many that are. */
  compileAhead(kernels: readonly KernelVariant[]): number
  /** Forgets a cached image that the driver refused, so that the next image() is compiled anew. */
  discard(file: string, defines: Defines): void
}

export class KernelStore {
  readonly #driver: CudaDriver
  readonly #images: KernelImages
  readonly #modules = new Map<string, Pointer>()
  readonly #kernels = new Map<string, Kernel>()

  constructor(driver: CudaDriver, images: KernelImages) {
    this.#driver = driver
    this.#images = images
  }

  kernel(file: string, name: string, defines: Defines = {}): Kernel {
    const label = kernelLabel(file, name, defines)
    const known = this.#kernels.get(label)
    if (known !== undefined) return known
    const handle = this.#function(this.#module(file, defines), label, name)
    const { registers, sharedBytes } = this.#driver.words.kernelAttributes
    const of = (attribute: number) => this.#attribute(handle, attribute)
    const kernel = { handle, label, registers: of(registers), sharedBytes: of(sharedBytes) }
    this.#kernels.set(label, kernel)
    return kernel
  }

  #module(file: string, defines: Defines): Pointer {
    const key = kernelLabel(file, '', defines)
    const known = this.#modules.get(key)
    if (known !== undefined) return known
    const loaded = longCall(() => this.#load(file, defines))
    this.#modules.set(key, loaded)
    return loaded
  }

  #load(file: string, defines: Defines): Pointer {
    const out = new BigUint64Array(1)
    const { functions, words } = this.#driver
    const { cuModuleLoadData } = functions
    let status = cuModuleLoadData(out, this.#images.image(file, defines))
    if (words.statuses.badImage.has(status)) {
      this.#images.discard(file, defines)
      status = cuModuleLoadData(out, this.#images.image(file, defines))
    }
    if (status !== 0) throw this.#refusal(status, `loading the kernels of ${file}.cu`)
    return out[0]!
  }

  /** What the compiler makes here the driver will refuse the next time, too. */
  #refusal(status: number, what: string): SkeinError {
    const error = this.#driver.error(status, what)
    const { badImage, newerImage } = this.#driver.words.statuses
    if (!badImage.has(status) && status !== newerImage) return error
    return new SkeinError(
      'backend_unavailable',
      `${error.message}: the driver cannot run what the CUDA compiler makes; update the NVIDIA driver, or install the CUDA version that "nvidia-smi" names ("skein doctor" says which compiler is used)`,
    )
  }

  #function(module: Pointer, label: string, name: string): Pointer {
    const out = new BigUint64Array(1)
    const status = this.#driver.functions.cuModuleGetFunction(out, module, name)
    if (status !== 0) throw this.#driver.error(status, `finding ${label} (is it extern "C"?)`)
    return out[0]!
  }

  #attribute(handle: Pointer, attribute: number): number {
    const out = new Int32Array(1)
    this.#driver.call('cuFuncGetAttribute', out, attribute, handle)
    return out[0]!
  }

  dispose(): void {
    for (const module of this.#modules.values()) this.#driver.call('cuModuleUnload', module)
    this.#modules.clear()
    this.#kernels.clear()
  }
}

function kernelLabel(file: string, name: string, defines: Defines): string {
  const values = Object.entries(defines)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => `${key}: ${value}`)
  return `${file}.cu: ${name}${values.length === 0 ? '' : ` {${values.join(', ')}}`}`
}
