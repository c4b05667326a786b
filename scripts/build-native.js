/**
 * Compiles kernels/cpu into one shared library per ISA level of this machine's architecture: kernels/build/
 * skein-cpu-<level>.<so|dylib>. Incremental by content. A missing compiler or a level it cannot build is a warning,
 * never a failure: the `reference` backend needs none of it. Knows nothing of which level a machine will load.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const sourceDir = join(root, 'kernels/cpu')
const buildDir = join(root, 'kernels/build')
const extension = process.platform === 'darwin' ? 'dylib' : 'so'

/** level → flags. -ffp-contract=off: an a·b + c is fused only where vec.h says so, in every loop alike. */
const LEVELS =
  process.arch === 'x64'
    ? {
        avx512:
          '-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx2 -mfma -mf16c -mprefer-vector-width=512',
        avx2: '-mavx2 -mfma -mf16c',
        baseline: '',
      }
    : { baseline: '' }
// GCC 12's own AVX-512 headers trip maybe-uninitialized (GCC bug 105593).
const COMMON =
  '-std=c++20 -O3 -Wall -Wextra -Werror -Wno-psabi -Wno-unknown-pragmas -Wno-maybe-uninitialized -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread -shared'

/** @param {string} flags */
const words = (flags) => flags.split(' ').filter((word) => word !== '')

/** The first compiler that runs, or null. */
function findCompiler() {
  const candidates = process.env.CXX ? [process.env.CXX] : ['g++', 'clang++', 'c++']
  for (const candidate of candidates) {
    const [command, ...args] = words(candidate)
    if (command === undefined) continue
    const probe = spawnSync(command, [...args, '--version'], { encoding: 'utf8' })
    if (probe.status === 0) return { command, args, version: probe.stdout.split('\n')[0] ?? '' }
  }
  return null
}

/**
 * Compiles one level unless its library was made from the same text.
 * @param {{ command: string, args: string[], version: string }} compiler
 * @param {string} level
 * @param {string} sourceHash
 */
async function buildLevel(compiler, level, sourceHash) {
  const flags = [...compiler.args, ...words(COMMON), ...words(LEVELS[level])]
  const library = join(buildDir, `skein-cpu-${level}.${extension}`)
  const stamp = `${library}.stamp`
  const key = createHash('sha256')
    .update([sourceHash, compiler.command, compiler.version, ...flags].join('\n'))
    .digest('hex')
  if (existsSync(library) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) {
    console.log(`skein-cpu-${level}: up to date`)
    return
  }
  const sources = readdirSync(sourceDir).filter((name) => name.endsWith('.cpp'))
  const started = performance.now()
  // Built aside and renamed, so that a process that has the old one loaded keeps it.
  const partial = `${library}.${process.pid}`
  const result = await run(compiler.command, [
    ...flags,
    '-o',
    partial,
    ...sources.sort().map((name) => join(sourceDir, name)),
  ])
  if (result.code !== 0) {
    rmSync(partial, { force: true })
    console.warn(
      `warning: skein-cpu-${level} was not built; ${compiler.version} said:\n${result.output}`,
    )
    return
  }
  renameSync(partial, library)
  writeFileSync(stamp, key)
  console.log(`skein-cpu-${level}: ${((performance.now() - started) / 1000).toFixed(1)} s`)
}

/**
 * @param {string} command
 * @param {string[]} args
 * @returns {Promise<{ code: number | null, output: string }>}
 */
function run(command, args) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    child.stdout.on('data', (text) => {
      output += text
    })
    child.stderr.on('data', (text) => {
      output += text
    })
    child.on('error', (error) => resolve({ code: -1, output: error.message }))
    child.on('close', (code) => resolve({ code, output }))
  })
}

/** Names and contents of all sources. */
function hashSources() {
  const hash = createHash('sha256')
  for (const name of readdirSync(sourceDir).sort()) {
    hash.update(name).update(readFileSync(join(sourceDir, name)))
  }
  return hash.digest('hex')
}

if (process.platform === 'win32') {
  console.warn(
    'warning: the cpu backend is not built on Windows; use WSL, or the reference backend.',
  )
} else {
  const compiler = findCompiler()
  if (compiler === null) {
    console.warn(
      'warning: no C++ compiler found, so the cpu backend was not built (the reference backend works, slowly).\n' +
        'Install one (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install) and run: npm run build:native',
    )
  } else {
    mkdirSync(buildDir, { recursive: true })
    const sourceHash = hashSources()
    await Promise.all(Object.keys(LEVELS).map((level) => buildLevel(compiler, level, sourceHash)))
  }
}
