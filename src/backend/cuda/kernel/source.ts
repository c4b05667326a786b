/** Kernel sources: the .cu files of kernels/cuda and the headers of that folder that they include. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SkeinError } from '../../../errors.ts'

/** kernels/cuda is in the same place seen from src/backend/cuda and from dist/backend/cuda. */
export const KERNEL_DIR = fileURLToPath(new URL('../../../../kernels/cuda', import.meta.url))

export interface KernelSource {
  readonly path: string
  readonly text: string
  /** Name and text of every header of the folder that is included, directly or not; what a cache key has to cover. */
  readonly headers: readonly (readonly [name: string, text: string])[]
}

export function readKernelSource(file: string, folder = KERNEL_DIR): KernelSource {
  const path = join(folder, `${file}.cu`)
  if (!existsSync(path))
    throw new SkeinError('backend_unavailable', `kernel source ${path} is missing; reinstall Skein`)
  const text = readFileSync(path, 'utf8')
  const headers = new Map<string, string>()
  collectHeaders(text, folder, headers)
  return { path, text, headers: [...headers].sort(([a], [b]) => (a < b ? -1 : 1)) }
}

function collectHeaders(text: string, folder: string, found: Map<string, string>): void {
  for (const [, name] of text.matchAll(/^[ \t]*#[ \t]*include[ \t]*"([^"]+)"/gm)) {
    const path = join(folder, name!)
    if (found.has(name!) || !existsSync(path)) continue
    const header = readFileSync(path, 'utf8')
    found.set(name!, header)
    collectHeaders(header, folder, found)
  }
}
