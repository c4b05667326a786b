/** A machine: the use of its processor, memory and GPUs, and the workers on it. */
import type { GpuInfo, SystemInfo, WorkerRecord } from '../../../src/gateway/contract.ts'
import { age, bytes } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { hashOf } from '../lib/router.ts'

/** Figures that change every second. */
interface MachineUse {
  readonly cpu: number
  readonly availableBytes: number
  readonly gpus: readonly GpuInfo[]
}

interface MachineProps {
  readonly system: SystemInfo
  readonly use: MachineUse
  readonly workers: readonly WorkerRecord[]
  /** The workers link to their pages. */
  readonly isOwn: boolean
}

const MIB = 2 ** 20

export function Machine({ system, use, workers, isOwn }: MachineProps) {
  const { os, cpu, memory, skein } = system
  const Heading = headingOf(isOwn)
  const running = workers.filter(({ status }) => status === 'running')
  const onGpu = ({ index }: GpuInfo) => running.filter((one) => deviceOf(one) === `cuda:${index}`)
  const elsewhere = running.filter((one) => !use.gpus.some((gpu) => onGpu(gpu).includes(one)))
  const used = memory.total_bytes - use.availableBytes
  return (
    <ul class="machine-list">
      <li class="card machine">
        <Heading>{os.hostname}</Heading>
        <p class="muted">{[cpu.model, t('{n} cores', { n: cpu.cores }), `${os.platform} ${os.machine}`].join(' · ')}</p>
        <Gauge name={t('Processor')} part={use.cpu} text={percent(use.cpu)} />
        <Gauge
          name={t('Memory')}
          part={used / memory.total_bytes}
          text={`${bytes(used)} / ${bytes(memory.total_bytes)}`}
        />
        <WorkerLinks workers={elsewhere} isOwn={isOwn} />
        <small class="muted">
          Skein {skein.version} · {t('for {time}', { time: age(skein.uptime_ms / 1000) })}
        </small>
      </li>
      {use.gpus.map((gpu) => (
        <Gpu key={gpu.uuid ?? gpu.index} gpu={gpu} workers={onGpu(gpu)} isOwn={isOwn} />
      ))}
    </ul>
  )
}

interface GpuProps {
  readonly gpu: GpuInfo
  readonly workers: readonly WorkerRecord[]
  readonly isOwn: boolean
}

function Gpu({ gpu, workers, isOwn }: GpuProps) {
  const Heading = headingOf(isOwn)
  const { index, name, memory_used_mb: used, memory_total_mb: total } = gpu
  const facts = [
    gpu.temperature_c === null ? null : `${gpu.temperature_c} °C`,
    gpu.power_w === null ? null : `${Math.round(gpu.power_w)} W`,
  ].filter((one) => one !== null)
  return (
    <li class="card machine">
      <Heading>GPU {index}</Heading>
      <p class="muted">{[name, ...facts].join(' · ')}</p>
      {gpu.utilisation !== null && (
        <Gauge name={t('In use')} part={gpu.utilisation / 100} text={percent(gpu.utilisation / 100)} />
      )}
      <Gauge name={t('Memory')} part={used / total} text={`${bytes(used * MIB)} / ${bytes(total * MIB)}`} />
      <WorkerLinks workers={workers} isOwn={isOwn} />
    </li>
  )
}

interface GaugeProps {
  readonly name: string
  /** Between 0 and 1. */
  readonly part: number
  readonly text: string
}

function Gauge({ name, part, text }: GaugeProps) {
  return (
    <div class="gauge">
      <span>{name}</span>
      <small>{text}</small>
      <progress value={Math.min(1, Math.max(0, part))} aria-label={name} />
    </div>
  )
}

interface WorkerLinksProps {
  readonly workers: readonly WorkerRecord[]
  readonly isOwn: boolean
}

function WorkerLinks({ workers, isOwn }: WorkerLinksProps) {
  if (workers.length === 0) return null
  return (
    <p class="machine-workers">
      {workers.map(({ worker_id, model, phase }) =>
        isOwn ? (
          <a key={worker_id} class={`badge ${phase}`} href={hashOf('workers', worker_id)}>
            {model}
          </a>
        ) : (
          <span key={worker_id} class={`badge ${phase}`}>
            {model}
          </span>
        ),
      )}
    </p>
  )
}

/** Heading level: below the page's heading, or below a node's. */
function headingOf(isOwn: boolean): 'h2' | 'h3' {
  return isOwn ? 'h2' : 'h3'
}

/** "cuda:0" of "cuda:0 NVIDIA H200 (…)"; while a worker loads, the requested device. */
function deviceOf({ info, spec }: WorkerRecord): string {
  if (info !== null) return info.device.split(' ', 1)[0]!
  return spec.device ?? (spec.gpu_id === null ? '' : `cuda:${spec.gpu_id}`)
}

function percent(part: number): string {
  return `${Math.round(part * 100)} %`
}
