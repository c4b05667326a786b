/**
 * `npm run dev -- [words of skein serve]`: builds src/ on every save and restarts the server after a successful build.
 * Serves the dashboard from web/ with hot reload and forwards its requests to that server. Kernels are built separately
 * (npm run build:native).
 */
import { spawn } from 'node:child_process'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const words = process.argv.slice(2)
const PORT = '8000'
const port = words.includes('--port') ? (words[words.indexOf('--port') + 1] ?? PORT) : PORT

/** @param {string} name @param {string[]} args @returns {string[]} */
const tool = (name, ...args) => [join(root, 'node_modules/.bin', name), ...args]

/** @type {import('node:child_process').ChildProcess | null} */
let server = null
/** @type {Promise<unknown>} */
let restarted = Promise.resolve()
let isEnding = false

/** The old server saves its sessions and frees its port before the next starts. */
async function restart() {
  const old = server
  server = null
  if (old !== null && old.exitCode === null && old.signalCode === null) {
    const ended = new Promise((resolve) => old.once('exit', resolve))
    old.kill('SIGTERM')
    await ended
  }
  if (isEnding) return
  const args = ['--enable-source-maps', join(root, 'dist/cli/main.js'), 'serve', ...words]
  server = spawn(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] })
}

const compiler = spawn(process.execPath, tool('tsc', '-p', '.', '--watch', '--preserveWatchOutput'), {
  cwd: root,
  stdio: ['ignore', 'pipe', 'inherit'],
  // A process group of its own: children of tsc do not end with it, nor before its build is done.
  detached: true,
})
createInterface({ input: compiler.stdout }).on('line', (line) => {
  console.log(line)
  // After a failed build the server stays.
  if (/Found 0 errors/.test(line)) restarted = restarted.then(restart)
})

const pages = spawn(process.execPath, tool('vite', 'web'), {
  cwd: root,
  stdio: ['ignore', 'inherit', 'inherit'],
  env: { ...process.env, SKEIN_DEV_URL: `http://127.0.0.1:${port}` },
})

/** @param {number} code */
function end(code) {
  if (isEnding) return
  isEnding = true
  process.exitCode = code
  server?.kill('SIGTERM')
  if (compiler.pid !== undefined && compiler.exitCode === null) process.kill(-compiler.pid, 'SIGKILL')
  // Vite would wait for event streams that never end, and has nothing to save.
  pages.kill('SIGKILL')
}
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM'])) process.on(signal, () => end(0))
compiler.on('exit', (code) => end(code ?? 1))
pages.on('exit', (code) => end(code ?? 1))
