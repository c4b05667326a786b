/**
 * Where NVRTC, cuBLASLt and nvcc are on this machine: toolkit folders, the loader's cache, and the wheels that Python
 * packages bring. Looks at names only; opens nothing. What it looks at can be replaced, for tests.
 */
import { execFileSync, type StdioOptions } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'

type LibraryName = 'nvrtc' | 'cublasLt'

/** The machine as the search sees it. */
export interface SearchRoots {
  readonly environment: Readonly<Record<string, string | undefined>>
  /** Folder that holds cuda, cuda-13.0 …: /usr/local */
  readonly toolkits: string
  /** Output of ldconfig -p, or ''. */
  ldconfig(): string
  /** sys.path of python3, or []. */
  pythonPaths(): readonly string[]
}

interface FoundLibrary {
  readonly path: string
  /** Version in the file's name: 12 for libnvrtc.so.12; null for a bare .so. */
  readonly major: number | null
}

interface Search {
  readonly found: FoundLibrary | null
  /** In the order of looking, for the message when nothing was found. */
  readonly searched: readonly string[]
  /** Found but made for a newer driver than this one. */
  readonly tooNew: readonly FoundLibrary[]
}

export const MACHINE: SearchRoots = {
  environment: process.env,
  toolkits: '/usr/local',
  ldconfig: () => output('ldconfig', ['-p']) || output('/sbin/ldconfig', ['-p']),
  pythonPaths: () => {
    const text = output('python3', ['-c', 'import json, sys; print(json.dumps(sys.path))'])
    // json.dumps of sys.path is a list of strings.
    return text === '' ? [] : (JSON.parse(text) as string[])
  },
}

const TIMEOUT_MS = 10_000

function output(command: string, args: readonly string[]): string {
  try {
    const stdio: StdioOptions = ['ignore', 'pipe', 'ignore']
    return execFileSync(command, args, { stdio, timeout: TIMEOUT_MS, encoding: 'utf8' })
  } catch {
    return ''
  }
}

/**
 * The first folder's newest library that a driver of this CUDA major version can serve. A library without a version in
 * its name is taken last.
 */
export function findLibrary(name: LibraryName, driverMajor: number, roots = MACHINE): Search {
  const searched: string[] = []
  const tooNew: FoundLibrary[] = []
  for (const [place, candidates] of places(name, roots)) {
    searched.push(place)
    const sorted = [...candidates].sort((a, b) => (b.major ?? -1) - (a.major ?? -1))
    const found = sorted.find(({ major }) => major === null || major <= driverMajor)
    tooNew.push(...sorted.filter(({ major }) => major !== null && major > driverMajor))
    if (found !== undefined) return { found, searched, tooNew }
  }
  return { found: null, searched, tooNew }
}

function* places(
  name: LibraryName,
  roots: SearchRoots,
): Generator<readonly [place: string, found: readonly FoundLibrary[]]> {
  for (const toolkit of toolkitFolders(roots)) {
    for (const sub of ['lib64', 'targets/x86_64-linux/lib', 'targets/sbsa-linux/lib', 'lib']) {
      const folder = join(toolkit, sub)
      if (existsSync(folder)) yield [folder, librariesIn(folder, name)]
    }
  }
  for (const folder of roots.environment.LD_LIBRARY_PATH?.split(delimiter) ?? [])
    if (folder !== '') yield [folder, librariesIn(folder, name)]
  yield ["the loader's cache (ldconfig -p)", librariesOf(roots.ldconfig(), name)]
  for (const packages of new Set(roots.pythonPaths())) {
    const vendor = join(packages, 'nvidia')
    if (packages === '' || !existsSync(vendor)) continue
    const found = list(vendor).flatMap((part) => librariesIn(join(vendor, part, 'lib'), name))
    yield [`${vendor}/*/lib`, found]
  }
  yield ["python3's packages (nvidia/*/lib)", []]
}

/** CUDA_HOME, CUDA_PATH, /usr/local/cuda, then /usr/local/cuda-*, newest first. */
function toolkitFolders({ environment, toolkits }: SearchRoots): string[] {
  const versions = list(toolkits)
    .filter((name) => /^cuda-\d/.test(name))
    .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }))
  const folders = [
    environment.CUDA_HOME,
    environment.CUDA_PATH,
    join(toolkits, 'cuda'),
    ...versions.map((name) => join(toolkits, name)),
    '/opt/cuda',
  ]
  return [...new Set(folders)].filter((folder): folder is string => !!folder && existsSync(folder))
}

function librariesIn(folder: string, name: LibraryName): FoundLibrary[] {
  const pattern = new RegExp(`^lib${name}\\.so(?:\\.(\\d+))?[.\\d]*$`)
  return list(folder).flatMap((file) => {
    const match = pattern.exec(file)
    if (match === null) return []
    return [{ path: join(folder, file), major: match[1] === undefined ? null : Number(match[1]) }]
  })
}

function librariesOf(ldconfig: string, name: LibraryName): FoundLibrary[] {
  const pattern = new RegExp(`^\\s*lib${name}\\.so(?:\\.(\\d+))?[.\\d]* .*=> (.+)$`, 'gm')
  return [...ldconfig.matchAll(pattern)].map(([, major, path]) => ({
    path: path!,
    major: major === undefined ? null : Number(major),
  }))
}

/** The folder with cuda_fp16.h that belongs to a library, or any toolkit's; null when there is none. */
export function findHeaders(libraryPath: string, roots = MACHINE): string | null {
  const folder = dirname(libraryPath)
  const candidates = [
    join(folder, '../include'),
    join(folder, '../../include'),
    join(folder, '../../cuda_runtime/include'),
    join(folder, '../../cu13/include'),
    join(folder, '../../cu12/include'),
    ...toolkitFolders(roots).flatMap((toolkit) => [
      join(toolkit, 'include'),
      join(toolkit, 'targets/x86_64-linux/include'),
      join(toolkit, 'targets/sbsa-linux/include'),
    ]),
    '/usr/include',
  ]
  return candidates.find((include) => existsSync(join(include, 'cuda_fp16.h'))) ?? null
}

/** nvcc of a toolkit folder or of the PATH; null when there is none. */
export function findNvcc(roots = MACHINE): string | null {
  const folders = [
    ...toolkitFolders(roots).map((toolkit) => join(toolkit, 'bin')),
    ...(roots.environment.PATH?.split(delimiter) ?? []),
  ]
  const paths = folders.map((folder) => join(folder, 'nvcc'))
  return paths.find((path) => existsSync(path)) ?? null
}

function list(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** The command that installs a library that was not found. */
export function installAdvice(name: LibraryName, driverMajor: number): string {
  const wheel = name === 'nvrtc' ? 'nvidia-cuda-nvrtc' : 'nvidia-cublas'
  const fitting = driverMajor >= 13 ? wheel : `${wheel}-cu${driverMajor}`
  return (
    `install the CUDA ${driverMajor} toolkit (apt-get install cuda-toolkit-${driverMajor}, from NVIDIA's repository), ` +
    `or: pip install ${fitting}; or point CUDA_HOME at one`
  )
}

/** One sentence for a library that the search did not find. */
export function describeMissing(name: LibraryName, driverMajor: number, search: Search): string {
  const newer = search.tooNew.map(({ path }) => path)
  const refused =
    newer.length === 0 ? '' : ` (${newer.join(', ')} needs a newer driver: this one serves CUDA ${driverMajor})`
  return `lib${name}.so was not found${refused}; searched ${search.searched.join(', ')}; ${installAdvice(name, driverMajor)}`
}
