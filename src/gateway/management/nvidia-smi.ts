/** Reads the GPUs of this machine with `nvidia-smi`: results are cached, and only one call runs at a time. */
import { type ChildProcessByStdio, execFile, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import { promisify } from 'node:util'
import type { Registry } from 'prom-client'
import type { GpuInfo } from '../contract.ts'
import { addReadMetric } from '../figures/read-metric.ts'

const FIELDS = [
  'index',
  'uuid',
  'name',
  'memory.total',
  'memory.used',
  'utilization.gpu',
  'temperature.gpu',
  'power.draw',
]
const QUERY = [`--query-gpu=${FIELDS.join(',')}`, '--format=csv,noheader,nounits']
const TIMEOUT_MS = 5000

const NOT_FOUND = 127
/** Runs the command for each line that it reads, and ends with this process, whose end of the pipe closes. */
const EACH_LINE = 'while read -r _; do "$0" "$@" 2>/dev/null; echo "= $?"; done'
const CODE = /^= (\d+)\n$/

interface Result {
  readonly printed: string
  readonly code: number
}

/** Null: the command has not ended. */
function resultOf(text: string): Result | null {
  const at = text.lastIndexOf('\n= ') + 1
  const code = CODE.exec(text.slice(at))?.[1]
  return code === undefined ? null : { printed: text.slice(0, at), code: Number(code) }
}

const run = promisify(execFile)

/**
 * Runs the command by a small process that was started early. To start one stops all threads of this process for as long
 * as it takes to copy the map of its memory: 30 ms for half a gigabyte on two busy cores.
 */
class Shell {
  readonly #sh: ChildProcessByStdio<Writable, Readable, null>
  #text = ''
  #done: ((result: Result | null) => void) | null = null

  constructor(command: string) {
    // A group of its own: Ctrl-C in a terminal is for this process, which may go on for a while, and close() ends the command too.
    const words = ['-c', EACH_LINE, command, ...QUERY]
    this.#sh = spawn('sh', words, { stdio: ['pipe', 'pipe', 'ignore'], detached: true })
    this.#sh.unref()
    // Pipes to processes are sockets. They do not keep this process alive.
    for (const pipe of [this.#sh.stdin, this.#sh.stdout]) (pipe as unknown as Socket).unref()
    this.#sh.stdin.on('error', () => {})
    this.#sh.on('error', () => this.#end(null))
    this.#sh.on('exit', () => this.#end(null))
    this.#sh.stdout.setEncoding('utf8').on('data', (text: string) => {
      this.#text += text
      const result = resultOf(this.#text)
      if (result !== null) this.#end(result)
    })
  }

  /** What the command printed and its exit code; null: the shell has ended, or the command takes too long. */
  async ask(): Promise<Result | null> {
    this.#text = ''
    const late = setTimeout(() => this.close(), TIMEOUT_MS)
    const result = await new Promise<Result | null>((resolve) => {
      this.#done = resolve
      if (this.#hasEnded) this.#end(null)
      else this.#sh.stdin.write('\n')
    })
    clearTimeout(late)
    return result
  }

  get #hasEnded(): boolean {
    return this.#sh.exitCode !== null || this.#sh.signalCode !== null
  }

  close(): void {
    if (this.#sh.pid !== undefined && !this.#hasEnded) process.kill(-this.#sh.pid, 'SIGKILL')
    this.#end(null)
  }

  #end(result: Result | null): void {
    this.#done?.(result)
    this.#done = null
  }
}

export class GpuWatch {
  readonly #command: string
  #shell: Shell | null = null
  #gpus: readonly GpuInfo[] = []
  #readAt = Number.NEGATIVE_INFINITY
  #reading: Promise<void> | null = null
  #isAbsent = false

  constructor(command = 'nvidia-smi') {
    this.#command = command
  }

  /** The last result. */
  get latest(): readonly GpuInfo[] {
    return this.#gpus
  }

  /** A result no older than `maxAgeMs`. Empty if there is no such command. */
  async read(maxAgeMs: number): Promise<readonly GpuInfo[]> {
    if (this.#isAbsent || performance.now() - this.#readAt <= maxAgeMs) return this.#gpus
    this.#reading ??= this.#ask().finally(() => {
      this.#reading = null
    })
    await this.#reading
    return this.#gpus
  }

  async #ask(): Promise<void> {
    this.#gpus = parseGpus(process.platform === 'win32' ? await this.#run() : await this.#askShell())
    this.#readAt = performance.now()
  }

  async #run(): Promise<string> {
    try {
      return (await run(this.#command, QUERY, { timeout: TIMEOUT_MS })).stdout
    } catch (error) {
      // A driver that is being replaced may be back in a minute; a missing command will not.
      this.#isAbsent = (error as NodeJS.ErrnoException).code === 'ENOENT'
      return ''
    }
  }

  async #askShell(): Promise<string> {
    this.#shell ??= new Shell(this.#command)
    const answer = await this.#shell.ask()
    this.#isAbsent = answer?.code === NOT_FOUND
    if (answer === null || this.#isAbsent) {
      this.#shell.close()
      this.#shell = null
    }
    return answer?.code === 0 ? answer.printed : ''
  }
}

/** One line per GPU; values that a GPU does not report read "[N/A]" or "[Not Supported]". */
export function parseGpus(csv: string): GpuInfo[] {
  const lines = csv.split('\n').filter((line) => line.trim() !== '')
  return lines.map((line) => {
    const [index, uuid, name, total, used, use, temperature, power] = line.split(',').map((field) => field.trim())
    return {
      index: Number(index),
      uuid: uuid?.startsWith('GPU-') ? uuid : null,
      name: name ?? '',
      memory_total_mb: known(total) ?? 0,
      memory_used_mb: known(used) ?? 0,
      utilisation: known(use),
      temperature_c: known(temperature),
      power_w: known(power),
    }
  })
}

function known(field: string | undefined): number | null {
  const value = Number(field)
  return field === undefined || field === '' || Number.isNaN(value) ? null : value
}

const MAX_AGE_MS = 2000

const MB = 2 ** 20

export function countGpus(registry: Registry, gpus: GpuWatch): void {
  const ofGpus = (name: string, help: string, value: (gpu: GpuInfo) => number | null) => {
    const read = async () =>
      (await gpus.read(MAX_AGE_MS)).map((gpu) => [{ gpu: String(gpu.index) }, value(gpu)] as const)
    addReadMetric(registry, { name: `gpu_${name}`, help, labelNames: ['gpu'], read })
  }
  ofGpus('memory_used_bytes', 'Memory in use, by any process', (gpu) => gpu.memory_used_mb * MB)
  ofGpus('memory_total_bytes', 'Memory', (gpu) => gpu.memory_total_mb * MB)
  ofGpus('utilisation_ratio', 'Share of the time in which a kernel ran', ({ utilisation }) =>
    utilisation === null ? null : utilisation / 100,
  )
  ofGpus('power_watts', 'Power draw', (gpu) => gpu.power_w)
}
