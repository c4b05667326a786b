/** A HIP compiler for tests: hipRTC, or clang with HIP's headers. Neither needs a GPU. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { bindAll, type NativeLibrary, openLibrary } from '../../src/backend/ffi.ts'

export interface HipCompiler {
  readonly name: string
  /** The compiler's errors; null if it compiles. */
  problem(path: string, text: string, chip: string, flags: readonly string[]): string | null
}

export function findHipCompiler(): HipCompiler | null {
  return hipRtc() ?? clang()
}

const I = 'int32'
const P = 'pointer'

const SIGNATURES = {
  hiprtcCreateProgram: [I, [P, 'string', 'string', I, P, P]],
  hiprtcCompileProgram: [I, [P, I, 'strings']],
  hiprtcGetProgramLogSize: [I, [P, P]],
  hiprtcGetProgramLog: [I, [P, P]],
  hiprtcGetCodeSize: [I, [P, P]],
  hiprtcDestroyProgram: [I, [P]],
} as const

function hipRtc(): HipCompiler | null {
  const library = openFirst(['libhiprtc.so.7', 'libhiprtc.so.6', 'libhiprtc.so'])
  if (library === null) return null
  const functions = bindAll(library, SIGNATURES)
  return {
    name: 'hipRTC',
    problem(path, text, chip, flags) {
      const out = new BigUint64Array(1)
      if (functions.hiprtcCreateProgram(out, text, path, 0, null, null) !== 0) return 'no program'
      const program = out[0]!
      const all = [`--offload-arch=${chip}`, ...flags]
      const size = new BigUint64Array(1)
      const status = functions.hiprtcCompileProgram(program, all.length, all)
      let problem: string | null = null
      if (status !== 0) {
        functions.hiprtcGetProgramLogSize(program, size)
        const log = new Uint8Array(Math.max(1, Number(size[0])))
        functions.hiprtcGetProgramLog(program, log)
        problem = new TextDecoder().decode(log)
      } else if (functions.hiprtcGetCodeSize(program, size) !== 0 || size[0] === 0n) problem = 'no code came out'
      functions.hiprtcDestroyProgram(out)
      return problem
    },
  }
}

function openFirst(names: readonly string[]): NativeLibrary | null {
  for (const name of names)
    try {
      return openLibrary(name)
    } catch {}
  return null
}

/** 19 is the first version with all the chips. The device's maths library is not linked. */
const CLANGS = ['clang++-22', 'clang++-21', 'clang++-20', 'clang++-19', 'clang++']
const LEAST_CLANG = 19
const HEADERS = [process.env.SKEIN_HIP_INCLUDE, '/usr/include', '/opt/rocm/include']

function clang(): HipCompiler | null {
  const headers = HEADERS.find((folder) => folder && existsSync(join(folder, 'hip/hip_runtime.h')))
  const folders = (process.env.PATH ?? '').split(delimiter)
  const path = CLANGS.flatMap((name) => folders.map((folder) => join(folder, name))).find(
    (one) => existsSync(one) && versionOf(one) >= LEAST_CLANG,
  )
  if (headers === undefined || path === undefined) return null
  const own = spawnSync(path, ['-print-resource-dir'], { encoding: 'utf8' }).stdout.trim()
  const to = join(mkdtempSync(join(tmpdir(), 'skein-hip-')), 'kernel.s')
  return {
    name: path,
    problem(source, _text, chip, flags) {
      const { status, stderr } = spawnSync(
        path,
        [
          ...['-x', 'hip', `--offload-arch=${chip}`, '-nogpulib', '-nogpuinc', '--cuda-device-only'],
          ...['-O2', '-S', '-D__HIP_PLATFORM_AMD__', '-isystem', headers],
          ...['-include', join(own, 'include/__clang_hip_runtime_wrapper.h')],
          ...['-include', 'hip/hip_runtime.h', ...flags, '-o', to, source],
        ],
        { encoding: 'utf8' },
      )
      return status === 0 ? null : stderr
    },
  }
}

function versionOf(path: string): number {
  const { stdout } = spawnSync(path, ['-dumpversion'], { encoding: 'utf8' })
  return Number.parseInt(stdout ?? '', 10)
}
