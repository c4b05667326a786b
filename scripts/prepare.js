/**
 * npm runs this after an install in a clone. Builds dist and the kernels, each only if its sources have changed. `npx
 * skein` installs the clone once more for itself, which then takes seconds, not minutes.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const stamp = join(root, 'dist/.stamp')
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

async function buildDist() {
  const now = hashSources()
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === now) console.log('dist: up to date')
  else {
    await run('npm', ['run', 'build'])
    writeFileSync(stamp, now)
  }
}

// npm also runs this after prepack, whose kernels are for every machine. A kernel from this machine's compiler needs
// this machine's libraries.
if (!/^(pack|publish)$/.test(process.env.npm_command ?? ''))
  // In parallel: the longest kernel file occupies one core for most of the time.
  await Promise.all([buildDist(), run(process.execPath, [join(root, 'scripts/build-native.js')])])
else {
  await buildDist()
  // Uses the models of dist; takes minutes on many cores, an hour on two.
  await run(process.execPath, [join(root, 'scripts/build-cubins.js')])
}
