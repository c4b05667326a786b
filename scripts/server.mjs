/** The server that a script measures: `skein serve` of the built files, in a process of its own. */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

export const MAIN = join(import.meta.dirname, '../dist/cli/main.js')

/** @returns {Promise<number>} */
export function freePort() {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const { port } = /** @type {import('node:net').AddressInfo} */ (probe.address())
      probe.close(() => resolve(port))
    })
  })
}

/** Every worker answers, and states can be written. @param {string} url @param {string} [key] */
async function isReady(url, key) {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const reply = await fetch(`${url}/readyz`, { headers }).catch(() => null)
  const body = await reply?.json().catch(() => null)
  return body?.status === 'ok'
}

/** @param {string} url */
export async function whenReady(url) {
  while (!(await isReady(url))) await delay(50)
}

/**
 * Starts it with these words of `skein serve`, and waits until it is ready. SERVER_CORES=0,1 (Linux) keeps it on these
 * cores. `stop` sends a signal and waits for the exit code, or the signal that ended it.
 * @param {string[]} words
 * @param {{ port?: number, key?: string, main?: string, stderr?: 'ignore' | 'inherit' | 'pipe', env?: object }} [options]
 */
export async function startServer(words, options = {}) {
  const { port = await freePort(), key, main = MAIN, stderr = 'ignore', env = {} } = options
  const url = `http://127.0.0.1:${port}`
  const cores = process.env.SERVER_CORES
  const pinned = cores === undefined ? [] : ['taskset', '-c', cores]
  const [command = '', ...rest] = [...pinned, process.execPath, main, 'serve', '--port', String(port), ...words]
  const child = spawn(command, rest, { stdio: ['ignore', 'ignore', stderr], env: { ...process.env, ...env } })
  /** @type {Promise<number | string | null>} */
  const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)))
  const stop = (/** @type {NodeJS.Signals} */ signal = 'SIGTERM') => {
    child.kill(signal)
    return ended
  }
  while (!(await isReady(url, key))) {
    if (child.exitCode !== null || child.signalCode !== null) throw new Error(`skein serve ended with ${await ended}`)
    await delay(50)
  }
  return { url, port, pid: child.pid ?? 0, child, stop }
}

/**
 * What `skein bench serve` reports with these words. `onTick` is called with its process every tenth of a second.
 * @param {string[]} words @param {(pid: number) => void} [onTick] @returns {Promise<any>}
 */
export async function benchServe(words, onTick = () => {}) {
  const args = [MAIN, 'bench', 'serve', '--json', '-', ...words]
  const client = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const ticks = setInterval(() => {
    if (client.pid !== undefined && client.exitCode === null) onTick(client.pid)
  }, 100)
  let text = ''
  for await (const part of client.stdout) text += part
  clearInterval(ticks)
  const at = text.indexOf('{')
  if (at === -1) throw new Error(`the load generator said nothing to read: ${text}`)
  return JSON.parse(text.slice(at))
}

/** Linux counts CPU time in hundredths of a second. */
const TICK_MS = 10

/** CPU milliseconds that a process has used. @param {number} pid */
export function cpuMs(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? []
  return TICK_MS * (Number(fields[11]) + Number(fields[12]))
}

/** @param {number} pid */
export function childrenOf(pid) {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return text === '' ? [] : text.split(' ').map(Number)
}

/** The value below which this part of the values lies; of none NaN. @param {readonly number[]} values @param {number} part */
export function quantile(values, part) {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? Number.NaN
}
