/** Runs the built command as a user does: `dist/cli/main.js` in its own process. */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import type { WorkerRecord } from '../../src/gateway/contract.ts'

export const MAIN = join(import.meta.dirname, '../../dist/cli/main.js')
export const DEMO = join(import.meta.dirname, '../../models/demo.pth')

export interface Finished {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** The current environment (tests set some of it), without SKEIN_ variables for tests, which are not settings. */
export function environment(): NodeJS.ProcessEnv {
  const { SKEIN_SLOW: _slow, SKEIN_SEED: _seed, ...others } = process.env
  return others
}

/** Runs a command to its end. */
export function skein(
  args: readonly string[],
  input = '',
  variables: Readonly<Record<string, string>> = {},
): Promise<Finished> {
  if (!existsSync(MAIN)) throw new Error('dist/ is not built; run npm run build')
  return new Promise((resolve, reject) => {
    const env = { ...environment(), ...variables }
    const child = spawn(process.execPath, [MAIN, ...args], { stdio: 'pipe', env })
    let [stdout, stderr] = ['', '']
    child.stdout.on('data', (data) => {
      stdout += data
    })
    child.stderr.on('data', (data) => {
      stderr += data
    })
    child.on('error', reject)
    child.on('close', (code) => resolve({ code: code ?? -1, stdout, stderr }))
    child.stdin.end(input)
  })
}

export interface RunningServer {
  readonly url: string
  readonly process: ChildProcess
  /** Its whole output. */
  readonly output: string[]
  /** SIGTERM; resolves with the exit code. */
  stop(): Promise<number>
}

/**
 * Runs `skein serve`, or another listening command, on a free port; resolves when it prints the address. `within`: a command
 * to run it under, which replaces itself with it.
 */
export function serve(
  args: readonly string[] = [],
  command = 'serve',
  variables: Readonly<Record<string, string>> = {},
  within: readonly string[] = [],
): Promise<RunningServer> {
  // Sessions go to a folder of this test, not to the user's.
  const XDG_DATA_HOME = mkdtempSync(join(tmpdir(), 'skein-data-'))
  const words = [...within, process.execPath, MAIN, command, '--port', '0', ...args]
  const child = spawn(words[0]!, words.slice(1), {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...environment(), XDG_DATA_HOME, ...variables },
  })
  const output: string[] = []
  const ended = new Promise<number>((resolve) => child.on('close', (code) => resolve(code ?? -1)))
  const stop = () => {
    child.kill('SIGTERM')
    return ended
  }
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => output.push(line))
    createInterface({ input: child.stdout }).on('line', (line) => {
      output.push(line)
      const url = /^address +(\S+)/.exec(line)?.[1]
      if (url) resolve({ url, process: child, output, stop })
    })
    void ended.then((code) => reject(new Error(`${command} ended with ${code}\n${output.join('\n')}`)))
  })
}

/** Process ids of the children of a process. */
export async function childrenOf(pid: number): Promise<number[]> {
  const { stdout } = await promisify(execFile)('pgrep', ['-P', String(pid)])
  return stdout.trim().split('\n').map(Number)
}

/** Answers of the demo model's PyTorch evaluation, and their margins. */
export interface GoldenSample {
  readonly prompt: string
  readonly prompt_ids: readonly number[]
  readonly answer: string
  readonly argmax: number
  /** The smallest distance between the best and second best logit along the answer. */
  readonly lead: number
  /** Logits at the last prompt position, from token 0 on. */
  readonly first_logits: readonly number[]
}

export function goldenSamples(): GoldenSample[] {
  const file = JSON.parse(readFileSync(join(DEMO, '../demo.samples.json'), 'utf8'))
  return Array.isArray(file) ? file : file.samples
}

export async function workersOf({ url }: RunningServer): Promise<WorkerRecord[]> {
  return (await (await fetch(`${url}/api/workers`)).json()) as WorkerRecord[]
}
