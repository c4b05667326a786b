/** Reads the GPUs of this machine with `nvidia-smi`: results are cached, and only one call runs at a time. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { Gauge, type Registry } from 'prom-client'
import type { GpuInfo } from '../contract.ts'

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

const run = promisify(execFile)

export class GpuWatch {
  readonly #command: string
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
    try {
      const { stdout } = await run(this.#command, QUERY, { timeout: TIMEOUT_MS })
      this.#gpus = parseGpus(stdout)
    } catch (error) {
      // A driver that is being replaced may be back in a minute; a missing command will not.
      this.#isAbsent = (error as NodeJS.ErrnoException).code === 'ENOENT'
      this.#gpus = []
    }
    this.#readAt = performance.now()
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
  const gauge = (name: string, help: string, read: (gpu: GpuInfo) => number | null) =>
    new Gauge({
      name: `skein_gpu_${name}`,
      help,
      labelNames: ['gpu'],
      registers: [registry],
      async collect() {
        this.reset()
        for (const gpu of await gpus.read(MAX_AGE_MS)) {
          const value = read(gpu)
          if (value !== null) this.set({ gpu: String(gpu.index) }, value)
        }
      },
    })
  gauge('memory_used_bytes', 'Memory in use, by any process', (gpu) => gpu.memory_used_mb * MB)
  gauge('memory_total_bytes', 'Memory', (gpu) => gpu.memory_total_mb * MB)
  gauge('utilisation_ratio', 'Share of the time in which a kernel ran', (gpu) =>
    gpu.utilisation === null ? null : gpu.utilisation / 100,
  )
  gauge('power_watts', 'Power draw', (gpu) => gpu.power_w)
}
