/** NVRTC, the run-time compiler for CUDA C++: source text in, machine code out. Knows no kernel and no cache. */
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { SkeinError } from '../../../errors.ts'
import { type Bound, bindAll, openLibrary } from '../../ffi.ts'
import type { CudaCompiler } from './cuda-target.ts'
import type { CompilerInput } from './target.ts'

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
    compile: (input) => compile(functions, includeFolders, input),
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

function compile(
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
