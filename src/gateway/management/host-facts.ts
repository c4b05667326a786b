/** Facts about the machine that the server runs on, and its load. */
import { cpus, freemem, hostname, machine, platform, totalmem } from 'node:os'
import type { SystemInfo } from '../contract.ts'
import type { GpuWatch } from './nvidia-smi.ts'

/** Share of all cores' time that was used since the last reading, 0 … 1. */
export class CpuUse {
  #last = times()
  #use = 0

  get latest(): number {
    return this.#use
  }

  look(): number {
    const now = times()
    const all = now.all - this.#last.all
    // Two readings within one tick of the system's clock give no value.
    if (all > 0) this.#use = 1 - (now.idle - this.#last.idle) / all
    this.#last = now
    return this.#use
  }
}

function times(): { readonly idle: number; readonly all: number } {
  let [idle, all] = [0, 0]
  for (const { times: own } of cpus()) {
    idle += own.idle
    all += own.idle + own.user + own.sys + own.nice + own.irq
  }
  return { idle, all }
}

/** Devices that a worker can be started on, of a machine whose NVIDIA GPUs have these indices. */
export type DevicesOf = (cards: readonly number[]) => readonly string[]

interface HostFacts {
  readonly version: string
  readonly url: string
  readonly cpuUse: CpuUse
  readonly gpus: GpuWatch
  readonly devices: DevicesOf
}

const GPU_AGE_MS = 1500

export async function systemInfo(facts: HostFacts): Promise<SystemInfo> {
  const { version, url, cpuUse } = facts
  const gpus = await facts.gpus.read(GPU_AGE_MS)
  const cores = cpus()
  return {
    skein: { version, uptime_ms: Math.round(1000 * process.uptime()), url },
    node: { version: process.version },
    python: { version: `none: Node.js ${process.version}`, executable: process.execPath },
    os: { platform: platform(), machine: machine(), hostname: hostname() },
    env: { CUDA_VISIBLE_DEVICES: process.env.CUDA_VISIBLE_DEVICES ?? null },
    cpu: { model: cores[0]?.model.trim() ?? 'unknown', cores: cores.length, use: cpuUse.latest },
    memory: { total_bytes: totalmem(), available_bytes: freemem() },
    gpus,
    devices: facts.devices(gpus.map(({ index }) => index)),
  }
}
