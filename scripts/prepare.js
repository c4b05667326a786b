/**
 * npm runs this after an install in a clone. Builds dist and the kernels, each only if its sources have changed. `npx
 * skein` installs the clone once more for itself, which then takes seconds, not minutes. `--built`: dist was just built.
 * `--check`, before `npm start`: says so where it was not, or from other sources.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const stamp = join(root, 'dist/.stamp')
const main = join(root, 'dist/cli/main.js')
const SOURCES = [
  'src',
  'web',
  'kernels/webgpu',
  'tsconfig.json',
  'bundle.config.ts',
  'package.json',
  'package-lock.json',
]

/** Names and contents of all files that dist is made from. */
function hashSources() {
  const hash = createHash('sha256')
  for (const source of SOURCES) {
    const path = join(root, source)
    const names = statSync(path).isDirectory() ? readdirSync(path, { recursive: true }) : ['']
    for (const name of names.map(String).sort()) {
      const file = join(path, name)
      if (statSync(file).isFile()) hash.update(`${source}/${name}\n`).update(readFileSync(file))
    }
  }
  return hash.digest('hex')
}

/**
 * @param {string} command
 * @param {string[]} words
 * @returns {Promise<void>}
 */
function run(command, words) {
  return new Promise((resolve) => {
    const child = spawn(command, words, { cwd: root, stdio: 'inherit' })
    child.on('close', (status) => (status === 0 ? resolve() : process.exit(status ?? 1)))
  })
}

function isCurrent() {
  return existsSync(stamp) && readFileSync(stamp, 'utf8') === hashSources()
}

async function buildDist() {
  if (isCurrent()) console.log('dist: up to date')
  else await run('npm', ['run', 'build'])
}

function built() {
  chmodSync(main, 0o755)
  writeFileSync(stamp, hashSources())
}

function check() {
  if (!existsSync(main)) {
    console.error('skein: nothing is built here yet; run: npm ci')
    process.exit(1)
  }
  // An image has no sources.
  if (existsSync(join(root, 'src')) && !isCurrent())
    console.error('skein: dist was built from other sources than these; to build it again run: npm ci')
}

const [asked] = process.argv.slice(2)
if (asked === '--built') built()
else if (asked === '--check') check()
// npm also runs this after prepack, whose kernels are for every machine. A kernel from this machine's compiler needs
// this machine's libraries.
else if (!/^(pack|publish)$/.test(process.env.npm_command ?? ''))
  // In parallel: the longest kernel file occupies one core for most of the time.
  await Promise.all([buildDist(), run(process.execPath, [join(root, 'scripts/build-native.js')])])
else {
  await buildDist()
  // Uses the models of dist; takes minutes on many cores, an hour on two.
  await run(process.execPath, [join(root, 'scripts/build-cubins.js')])
}
