/**
 * Machine code of kernel files, compiled at first use and kept on disk under a key that covers everything it was made
 * from. A cache that cannot be written costs time, nothing else. Knows no driver.
 */
import { createHash } from 'node:crypto'
import { readFileSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { makeFolder } from '../../../files/make-folder.ts'
import { replaceFile } from '../../../files/replace.ts'
import { chooseTarget, compileOptions, openCompiler } from './compiler.ts'
import type { Defines, KernelImages } from './kernel.ts'
import { KERNEL_DIR, type KernelSource, readKernelSource } from './source.ts'
import type { Compiler, Target } from './target.ts'

const DIGEST_BYTES = 32

/** $XDG_CACHE_HOME/skein/<name>, or the same under ~/.cache. */
export function cacheFolder(name: string, environment = process.env): string {
  return join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'skein', name)
}

/** What a compilation was made from, in one hash. */
export function imageKey(
  source: KernelSource,
  target: Target,
  options: readonly string[],
  compiler: string,
): string {
  const parts = [
    source.text,
    ...source.headers.flat(),
    target.name,
    target.kind,
    ...options,
    compiler,
  ]
  const hash = createHash('sha256')
  // Lengths keep two lists apart whose concatenations are the same.
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('hex')
}

/** The kernels of a folder for a chip; the compiler is looked for when the first of them is asked for. */
export function createKernelImages(
  computeCapability: readonly [number, number],
  driverMajor: number,
  sources = KERNEL_DIR,
): KernelImages {
  let compiler: Compiler | undefined
  const folder = cacheFolder('cubin')
  const plan = (file: string, defines: Defines) => {
    compiler ??= openCompiler(driverMajor)
    const source = readKernelSource(file, sources)
    const target = chooseTarget(computeCapability, compiler.capabilities)
    const options = compileOptions(sources, defines)
    // The folder's path says nothing about the code: its headers are in the key by their text.
    const keyed = compileOptions('', defines)
    const key = imageKey(source, target, keyed, compiler.description)
    return {
      compiler,
      input: { source, target, options },
      path: join(folder, `${key}.${target.kind}`),
    }
  }
  return {
    image(file, defines) {
      const { compiler, input, path } = plan(file, defines)
      const cached = readCached(path)
      const known = cached === null ? null : unseal(cached)
      if (known !== null) return known
      const image = compiler.compile(input)
      writeCached(folder, path, seal(image))
      return image
    },
    discard: (file, defines) => rmSync(plan(file, defines).path, { force: true }),
  }
}

/** The driver is told no length and can hang on half an image, so one from the disk is checked before it is loaded. */
export function seal(image: Uint8Array): Uint8Array {
  return Buffer.concat([digest(image), image])
}

/** The image of a sealed file, or null when it is not whole. */
export function unseal(sealed: Uint8Array): Uint8Array | null {
  const image = new Uint8Array(sealed.subarray(DIGEST_BYTES))
  return digest(image).equals(sealed.subarray(0, DIGEST_BYTES)) ? image : null
}

function digest(image: Uint8Array): Buffer {
  return createHash('sha256').update(image).digest()
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
