/** Prometheus metrics of this machine's GPUs, from what nvidia-smi last said. */
import { Gauge, type Registry } from 'prom-client'
import type { GpuInfo } from '../contract.ts'
import type { GpuWatch } from './nvidia-smi.ts'

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
  gauge('memory_used_bytes', 'Memory in use, by anybody', (gpu) => gpu.memory_used_mb * MB)
  gauge('memory_total_bytes', 'Memory', (gpu) => gpu.memory_total_mb * MB)
  gauge('utilisation_ratio', 'Share of the time in which a kernel ran', (gpu) =>
    gpu.utilisation === null ? null : gpu.utilisation / 100,
  )
  gauge('power_watts', 'Power draw', (gpu) => gpu.power_w)
}
