/**
 * Machine code of kernel files, compiled at first use and kept on disk under a key that covers everything it was made
 * from. A cache that cannot be written costs time, nothing else. Knows no driver.
 */
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'
import { makeFolder } from '../../../files/make-folder.ts'
import { replaceFile } from '../../../files/replace.ts'
import { imageAhead, startCompiling } from './ahead.ts'
import { compileOptions } from './compiler.ts'
import type { Defines, KernelImages } from './kernel.ts'
import { imageKey, seal, unseal } from './seal.ts'
import { KERNEL_DIR, type KernelSource, readKernelSource } from './source.ts'
import { type Compiler, type CompilerSource, type ImageMachine, type ImagePlan, nativeTarget } from './target.ts'

/** $XDG_CACHE_HOME/skein/<name>, or the same under ~/.cache. */
export function cacheFolder(name: string, environment = process.env): string {
  return join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'skein', name)
}

/** The kernels of a folder for a chip; the compiler is looked for when the first is asked for that does not come with Skein. */
export function createKernelImages(machine: ImageMachine, by: CompilerSource, sources = KERNEL_DIR): KernelImages {
  const driverMajor = Math.floor(machine.driverVersion / 1000)
  const shipped = new ShippedImages(machine, driverMajor)
  const planOf = imagePlanner(machine, by, sources)
  return {
    image(file, defines) {
      const known = shipped.image(readKernelSource(file, sources), defines)
      if (known !== null) return known
      const plan = planOf(file, defines)
      return imageAhead(plan) ?? cachedImage(plan) ?? compiledImage(plan)
    },
    compileAhead(kernels) {
      const missing = kernels
        .filter(([file, defines]) => !shipped.has(readKernelSource(file, sources), defines))
        .map(([file, defines]) => planOf(file, defines))
        // One that turns out to be damaged is compiled when it is asked for.
        .filter(({ path }) => !existsSync(path))
      return startCompiling(missing, by.name, machine.driverVersion)
    },
    discard(file, defines) {
      // What came with Skein is compiled here from then on.
      if (shipped.refuse(readKernelSource(file, sources), defines)) return
      rmSync(planOf(file, defines).path, { force: true })
    },
  }
}

function imagePlanner(machine: ImageMachine, by: CompilerSource, sources: string) {
  let compiler: Compiler | undefined
  const folder = cacheFolder('cubin')
  return (file: string, defines: Defines): ImagePlan => {
    compiler ??= by.openCompiler(machine.driverVersion)
    const source = readKernelSource(file, sources)
    const target = compiler.targetOf(machine)
    const options = compileOptions(sources, defines)
    // The folder's path says nothing about the code: its headers are in the key by their text.
    const keyed = compileOptions('', defines)
    const key = imageKey(source, target, keyed, compiler.description)
    const path = join(folder, `${key}.${target.kind}`)
    return { compiler, input: { source, target, options }, path }
  }
}

function cachedImage({ path }: ImagePlan): Uint8Array | null {
  const cached = readCached(path)
  return cached === null ? null : unseal(cached)
}

function compiledImage({ compiler, input, path }: ImagePlan): Uint8Array {
  const image = compiler.compile(input)
  writeCached(dirname(path), path, seal(image))
  return image
}

export function readCached(path: string): Uint8Array | null {
  try {
    return readFileSync(path)
  } catch {
    return null
  }
}

/** Written aside and renamed, so that no reader ever sees half a file. False when the cache cannot be written. */
export function writeCached(folder: string, path: string, bytes: Uint8Array | string): boolean {
  try {
    makeFolder(folder)
    replaceFile(path, bytes)
    return true
  } catch {
    return false
  }
}

/**
 * Machine code that comes with Skein, made by scripts/build-cubins.js: a folder for each version of CUDA that made some. It is
 * known by its text and macros, as what is compiled here is, so that kernels which were changed are compiled.
 */
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
