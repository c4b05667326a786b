/**
 * Machine code that comes with Skein, made by scripts/build-cubins.js: a folder for each version of CUDA that made some. It is
 * known by its text and macros, as what is compiled here is, so that kernels which were changed are compiled.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'
import { compileOptions } from './compiler.ts'
import type { Defines } from './kernel.ts'
import { imageKey, unseal } from './seal.ts'
import { KERNEL_DIR, type KernelSource } from './source.ts'
import { type ImageMachine, nativeTarget } from './target.ts'

/** Of its own kernels for a chip; null where the chip's code cannot come with anything. */
export const SHIPPED_DIR = join(KERNEL_DIR, '../build')
const FOLDER = /^cuda-(\d+)$/

/** The name of an image's file. */
export function shippedName(source: KernelSource, chip: string, defines: Defines): string {
  return `${imageKey(source, nativeTarget(chip), compileOptions('', defines), 'shipped').slice(0, 32)}.br`
}

export class ShippedImages {
  readonly #machine: ImageMachine
  /** Newest first, as far as the driver can run what they hold. */
  readonly #folders: readonly { readonly path: string; readonly names: ReadonlySet<string> }[]
  readonly #refused = new Set<string>()

  constructor(machine: ImageMachine, driverMajor: number, folder = SHIPPED_DIR) {
    this.#machine = machine
    const majors = list(folder)
      .map((name) => Number(FOLDER.exec(name)?.[1]))
      .filter((major) => major <= driverMajor)
      .sort((a, b) => b - a)
    this.#folders = machine.isSimulated
      ? []
      : majors.map((major) => {
          const path = join(folder, `cuda-${major}`)
          return { path, names: new Set(list(path)) }
        })
  }

  has(source: KernelSource, defines: Defines): boolean {
    return this.#find(source, defines) !== null
  }

  image(source: KernelSource, defines: Defines): Uint8Array | null {
    const found = this.#find(source, defines)
    return found === null ? null : readShipped(found.path)
  }

  /** One that the driver does not take is as if it were not there; false where there is none. */
  refuse(source: KernelSource, defines: Defines): boolean {
    const found = this.#find(source, defines)
    if (found !== null) this.#refused.add(found.name)
    return found !== null
  }

  #find(source: KernelSource, defines: Defines): { name: string; path: string } | null {
    if (this.#folders.length === 0) return null
    const name = shippedName(source, this.#machine.chip, defines)
    const folder = this.#folders.find(({ names }) => names.has(name))
    if (folder === undefined || this.#refused.has(name)) return null
    return { name, path: join(folder.path, name) }
  }
}

function readShipped(path: string): Uint8Array | null {
  try {
    return unseal(brotliDecompressSync(readFileSync(path)))
  } catch {
    return null
  }
}

function list(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}
