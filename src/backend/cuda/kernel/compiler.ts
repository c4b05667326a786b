/**
 * Which compiler turns kernel sources into machine code here, and with which options. NVRTC where it is
 * found, else nvcc. The kernels need no header of CUDA. Knows no kernel and no cache.
 */

import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { SkeinError } from '../../../errors.ts'
import { type Bound, bindAll, openLibrary } from '../../ffi.ts'
import { describeMissing, findHeaders, findLibrary, findNvcc, MACHINE, type SearchRoots } from '../driver/libraries.ts'
import { type CudaCompiler, targetOf } from './cuda-target.ts'
import type { Defines } from './kernel.ts'
import type { Compiler, CompilerInput } from './target.ts'

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

/** nvcc, used where there is no NVRTC: one process per kernel file. Knows no kernel and no cache. */
export function openNvcc(path: string): CudaCompiler {
  const version = run(path, ['--version'])
  const release = /release ([\d.]+), (V[\d.]+)/.exec(version.output)
  if (version.status !== 0 || release === null)
    throw new SkeinError('backend_unavailable', `${path} --version failed: ${version.output}`)
  return {
    description: `nvcc ${release[2]}`,
    path,
    capabilities: capabilitiesOf(path),
    compile: (input) => compileByNvcc(path, input),
  }
}

/** "sm_75 …" or "compute_75 …", one a line. */
function capabilitiesOf(path: string): number[] {
  const { output } = run(path, ['--list-gpu-arch'])
  return [...output.matchAll(/compute_(\d+)\b/g)].map(([, number]) => Number(number))
}

function compileByNvcc(path: string, { source, target, options }: CompilerInput): Uint8Array {
  const folder = mkdtempSync(join(tmpdir(), 'skein-nvcc-'))
  try {
    const image = join(folder, 'image')
    const result = run(path, [...nvccFlags(target), ...options, '-o', image, source.path])
    if (result.status !== 0)
      throw new SkeinError(
        'backend_unavailable',
        `nvcc cannot compile ${source.path} for ${target.name}:\n${result.output}`,
      )
    const bytes = readFileSync(image)
    // The driver takes PTX as a C string.
    return target.kind === 'ptx' ? Buffer.concat([bytes, Uint8Array.of(0)]) : bytes
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** A shorthand -arch=sm_90a would also run a pass for plain sm_90, which lacks the instructions. */
export function nvccFlags({ name, kind }: CompilerInput['target']): string[] {
  const virtual = name.replace('sm_', 'compute_')
  return [`-${kind}`, `-gencode=arch=${virtual},code=${kind === 'cubin' ? name : virtual}`]
}

function run(path: string, args: readonly string[]): { status: number; output: string } {
  const { status, stdout, stderr, error } = spawnSync(path, args, { encoding: 'utf8' })
  return { status: status ?? -1, output: error?.message ?? `${stdout}${stderr}` }
}

/** NVRTC, the run-time compiler for CUDA C++: source text in, machine code out. Knows no kernel and no cache. */
const I = 'int32'
const P = 'pointer'

const SIGNATURES = {
  nvrtcVersion: [I, [P, P]],
  nvrtcGetErrorString: ['string', [I]],
  nvrtcGetNumSupportedArchs: [I, [P]],
  nvrtcGetSupportedArchs: [I, [P]],
  nvrtcCreateProgram: [I, [P, 'string', 'string', I, P, P]],
  nvrtcCompileProgram: [I, [P, I, 'strings']],
  nvrtcDestroyProgram: [I, [P]],
  nvrtcGetProgramLogSize: [I, [P, P]],
  nvrtcGetProgramLog: [I, [P, P]],
  nvrtcGetCUBINSize: [I, [P, P]],
  nvrtcGetCUBIN: [I, [P, P]],
  nvrtcGetPTXSize: [I, [P, P]],
  nvrtcGetPTX: [I, [P, P]],
} as const

type Functions = Bound<typeof SIGNATURES>

export function openNvrtc(path: string, includeFolders: readonly string[]): CudaCompiler {
  const functions = bindAll(openLibrary(path), SIGNATURES)
  const [major, minor] = [new Int32Array(1), new Int32Array(1)]
  check(functions, functions.nvrtcVersion(major, minor), 'nvrtcVersion')
  openBuiltins(dirname(path), `${major[0]}.${minor[0]}`)
  return {
    description: `NVRTC ${major[0]}.${minor[0]}`,
    path,
    capabilities: supported(functions),
    compile: (input) => compileByNvrtc(functions, includeFolders, input),
  }
}

/**
 * NVRTC asks the loader for this one by name when it compiles; beside a wheel's NVRTC, where no loader looks, it is found
 * because it is open already.
 */
function openBuiltins(folder: string, version: string): void {
  const path = join(folder, `libnvrtc-builtins.so.${version}`)
  if (existsSync(path)) openLibrary(path)
}

function supported(functions: Functions): number[] {
  const count = new Int32Array(1)
  check(functions, functions.nvrtcGetNumSupportedArchs(count), 'nvrtcGetNumSupportedArchs')
  const capabilities = new Int32Array(count[0]!)
  check(functions, functions.nvrtcGetSupportedArchs(capabilities), 'nvrtcGetSupportedArchs')
  return [...capabilities]
}

function compileByNvrtc(
  functions: Functions,
  includeFolders: readonly string[],
  { source, target, options }: CompilerInput,
): Uint8Array {
  const out = new BigUint64Array(1)
  const created = functions.nvrtcCreateProgram(out, source.text, source.path, 0, null, null)
  check(functions, created, 'nvrtcCreateProgram')
  const program = out[0]!
  try {
    const flags = [
      `--gpu-architecture=${target.name}`,
      ...options,
      ...includeFolders.map((folder) => `--include-path=${folder}`),
    ]
    const status = functions.nvrtcCompileProgram(program, flags.length, flags)
    if (status !== 0)
      throw new SkeinError(
        'backend_unavailable',
        `NVRTC cannot compile ${source.path} for ${target.name}: ${functions.nvrtcGetErrorString(status)}\n` +
          readLog(functions, program),
      )
    return readImage(functions, program, target.kind)
  } finally {
    functions.nvrtcDestroyProgram(out)
  }
}

function readLog(functions: Functions, program: bigint): string {
  const size = new BigUint64Array(1)
  if (functions.nvrtcGetProgramLogSize(program, size) !== 0) return ''
  const log = new Uint8Array(Math.max(1, Number(size[0])))
  functions.nvrtcGetProgramLog(program, log)
  return new TextDecoder().decode(log.subarray(0, -1))
}

function readImage(functions: Functions, program: bigint, kind: 'cubin' | 'ptx'): Uint8Array {
  const { nvrtcGetCUBINSize, nvrtcGetCUBIN, nvrtcGetPTXSize, nvrtcGetPTX } = functions
  const [sizeOf, read] = kind === 'cubin' ? [nvrtcGetCUBINSize, nvrtcGetCUBIN] : [nvrtcGetPTXSize, nvrtcGetPTX]
  const size = new BigUint64Array(1)
  check(functions, sizeOf(program, size), `size of the ${kind}`)
  const image = new Uint8Array(Number(size[0]))
  check(functions, read(program, image), kind)
  return image
}

function check(functions: Functions, status: number, what: string): void {
  if (status === 0) return
  throw new SkeinError('backend_unavailable', `NVRTC, ${what}: ${functions.nvrtcGetErrorString(status)}`)
}
