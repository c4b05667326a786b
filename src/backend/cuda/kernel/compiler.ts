/**
 * Which compiler turns kernel sources into machine code here, and with which options. NVRTC where it is
 * found, else nvcc. The kernels need no header of CUDA. Knows no kernel and no cache.
 */

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../../errors.ts'
import { describeMissing, findHeaders, findLibrary, findNvcc, MACHINE, type SearchRoots } from '../driver/libraries.ts'
import { type CudaCompiler, targetOf } from './cuda-target.ts'
import type { Defines } from './kernel.ts'
import { openNvcc } from './nvcc.ts'
import { openNvrtc } from './nvrtc.ts'
import type { Compiler } from './target.ts'

/** Options of every compilation; `folder` is where #include "…" looks. */
export function compileOptions(folder: string, defines: Defines): string[] {
  const macros = Object.entries(defines).sort(([a], [b]) => (a < b ? -1 : 1))
  return ['-std=c++17', `-I${folder}`, ...macros.map(([name, value]) => `-D${name}=${value}`)]
}

/** The compiler of this machine, for a driver of the given CUDA major version. */
export function openCompiler(driverMajor: number, roots = MACHINE): Compiler {
  const compiler = findCompiler(driverMajor, roots)
  return { ...compiler, targetOf: (machine) => targetOf(machine, compiler.capabilities) }
}

function findCompiler(driverMajor: number, roots: SearchRoots): CudaCompiler {
  const search = findLibrary('nvrtc', driverMajor, roots)
  if (search.found !== null) return openNvrtc(search.found.path, headerFolders(search.found.path, roots))
  const nvcc = findNvcc(roots)
  if (nvcc !== null) return openNvcc(nvcc)
  const why = describeMissing('nvrtc', driverMajor, search)
  throw new SkeinError('backend_unavailable', `no CUDA compiler: ${why}; nvcc is not here either`)
}

/**
 * For kernels beside ours that include what the toolkit has; none where it is not found. From CUDA 13 on <nv/target>, which
 * cuda_fp16.h includes, lives in a folder of its own.
 */
function headerFolders(nvrtc: string, roots: SearchRoots): string[] {
  const include = findHeaders(nvrtc, roots)
  if (include === null) return []
  const cccl = join(include, 'cccl')
  return existsSync(cccl) ? [include, cccl] : [include]
}
