/**
 * Which of the built kernel libraries this machine loads. scripts/build-native.js compiles the levels, and beside them a
 * small library that says which of them a machine can run.
 */
import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SkeinError } from '../../errors.ts'
import { bindAll, openLibrary } from '../ffi.ts'

export type IsaLevel = 'baseline' | 'avx2' | 'avx512' | 'amx' | 'dotprod' | 'i8mm'
/** From the plainest to the best; on arm64 `baseline` is NEON, as kernels/machine/level.cpp counts. */
const ISA_LEVELS: readonly IsaLevel[] =
  process.arch === 'arm64' ? ['baseline', 'dotprod', 'i8mm'] : ['baseline', 'avx2', 'avx512', 'amx']

/** kernels/build is in the same place seen from src/backend/cpu and from dist/backend/cpu. */
const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const BUILD_DIR = join(ROOT, 'kernels/build', `${process.platform}-${process.arch}`)
/** Named whole: an installed package is not where its user is. */
const BUILD_SCRIPT = join(ROOT, 'scripts/build-native.js')

/** The report of `skein doctor` on this backend. */
interface CpuReport {
  readonly levels: readonly { readonly level: IsaLevel; readonly path: string; readonly isBuilt: boolean }[]
  /** The best level of the machine; null when no library could tell. */
  readonly machine: IsaLevel | null
  /** The level that would be loaded; null when none can. */
  readonly chosen: IsaLevel | null
  readonly threads: number
  /** Why no level can be loaded, and what to do. */
  readonly problem: string | null
}

export function libraryPath(level: IsaLevel | 'machine'): string {
  const { platform } = process
  const extension = platform === 'darwin' ? 'dylib' : platform === 'win32' ? 'dll' : 'so'
  return join(BUILD_DIR, `skein-cpu-${level}.${extension}`)
}

/** The best level that this machine can run; fails when nothing was built. */
function machineLevel(): IsaLevel {
  const path = libraryPath('machine')
  if (!existsSync(path)) throw notBuilt(path)
  const { sk_machine_level } = bindAll(openLibrary(path), { sk_machine_level: ['int32', []] })
  return ISA_LEVELS[sk_machine_level()] ?? 'baseline'
}

function notBuilt(path: string): SkeinError {
  return new SkeinError(
    'backend_unavailable',
    `the cpu kernels are not built (${path} is missing); install a C++ compiler (apt-get install g++, or the ` +
      `Xcode command line tools) and run: node ${BUILD_SCRIPT}. The reference backend works without`,
  )
}

/** The levels that are built and that this machine can run, plainest first. */
export function availableLevels(): readonly IsaLevel[] {
  const best = ISA_LEVELS.indexOf(machineLevel())
  return ISA_LEVELS.filter((level, i) => i <= best && existsSync(libraryPath(level)))
}

/** The level asked for (SKEIN_ISA when the caller asks for none), or the best one available. */
export function chooseLevel(asked: string | undefined = process.env.SKEIN_ISA): IsaLevel {
  const available = availableLevels()
  const best = available.at(-1)
  if (best === undefined) throw notBuilt(libraryPath(machineLevel()))
  if (asked === undefined || asked === '') return best
  const level = ISA_LEVELS.find((name) => name === asked)
  if (level !== undefined && available.includes(level)) return level
  const why =
    level === undefined
      ? 'is not an ISA level'
      : ISA_LEVELS.indexOf(level) > ISA_LEVELS.indexOf(machineLevel())
        ? 'cannot run on this machine'
        : 'was not built (node scripts/build-native.js --all)'
  // Not backend_unavailable: whoever asks for a level does not want the reference backend in its place.
  throw new SkeinError('invalid_request', `SKEIN_ISA=${asked} ${why}; available: ${available.join(', ')}`)
}

/** The number asked for (SKEIN_THREADS when the caller asks for none), or one per core. */
export function chooseThreads(asked?: number): number {
  const fromEnvironment = process.env.SKEIN_THREADS
  const threads = asked ?? (fromEnvironment ? Number(fromEnvironment) : Math.min(availableParallelism(), 1024))
  if (Number.isInteger(threads) && threads >= 1 && threads <= 1024) return threads
  throw new SkeinError(
    'invalid_request',
    `${asked === undefined ? `SKEIN_THREADS=${fromEnvironment}` : `threads ${asked}`} is not a whole number from 1 to 1024`,
    { param: 'threads' },
  )
}

export function cpuReport(): CpuReport {
  const levels = ISA_LEVELS.map((level) => {
    const path = libraryPath(level)
    return { level, path, isBuilt: existsSync(path) }
  })
  try {
    const [machine, chosen, threads] = [machineLevel(), chooseLevel(), chooseThreads()]
    return { levels, machine, chosen, threads, problem: null }
  } catch (error) {
    const problem = SkeinError.from(error).message
    return { levels, machine: null, chosen: null, threads: availableParallelism(), problem }
  }
}
