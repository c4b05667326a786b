/**
 * Which compiler turns kernel sources into machine code here, for which target and with which options. NVRTC where it is
 * found, else nvcc. The kernels need no header of CUDA. Knows no kernel and no cache.
 */

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../../errors.ts'
import { describeMissing, findHeaders, findLibrary, findNvcc, MACHINE, type SearchRoots } from '../driver/libraries.ts'
import type { Defines } from './kernel.ts'
import { openNvcc } from './nvcc.ts'
import { openNvrtc } from './nvrtc.ts'
import { type Compiler, nativeTarget, type Target } from './target.ts'

/** For chips from here on kernels are chosen that are empty when they are compiled for earlier ones. */
const HOPPER = 90

/** The chip itself where the compiler knows it, else PTX of the latest chip before it. */
export function chooseTarget([major, minor]: readonly [number, number], capabilities: readonly number[]): Target {
  const wanted = 10 * major + minor
  if (capabilities.includes(wanted)) return nativeTarget([major, minor])
  const least = wanted >= HOPPER ? HOPPER : 0
  const older = capabilities.filter((capability) => least <= capability && capability < wanted)
  if (older.length === 0)
    throw new SkeinError(
      'backend_unavailable',
      `the CUDA compiler knows no chip of capability ${major}.${minor} or earlier${least > 0 ? ' down to 9.0' : ''} (it knows ${capabilities.join(', ')}); install ${least > 0 ? 'CUDA 12.1 or later' : 'an earlier CUDA version'}`,
    )
  return { name: `compute_${Math.max(...older)}`, kind: 'ptx' }
}

/** Options of every compilation; `folder` is where #include "…" looks. */
export function compileOptions(folder: string, defines: Defines): string[] {
  const macros = Object.entries(defines).sort(([a], [b]) => (a < b ? -1 : 1))
  return ['-std=c++17', `-I${folder}`, ...macros.map(([name, value]) => `-D${name}=${value}`)]
}

/** The compiler of this machine, for a driver of the given CUDA major version. */
export function openCompiler(driverMajor: number, roots = MACHINE): Compiler {
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
