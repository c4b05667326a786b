/** Overview: the server now and over the last minutes, for one worker or all. */
import { signal } from '@preact/signals'
import type { Percentiles, Sample, WorkerSample } from '../../../src/gateway/contract.ts'
import { bytes, count, milliseconds, percent } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { connection, samples, system, workers } from '../lib/live.ts'
import { partOf } from '../lib/stats.ts'
import { Empty, Loading, NoModel } from '../parts/basics.tsx'
import { Chart } from '../parts/chart.tsx'

const chosen = signal<string | null>(null)
const seconds = signal(120)
const SPANS: readonly [number, Text][] = [
  [60, '1 min'],
  [120, '2 min'],
  [300, '5 min'],
  [600, '10 min'],
]

export function OverviewPage() {
  if (system.value === null) {
    return connection.value.state === 'connecting' ? (
      <Loading />
    ) : (
      <Empty title={t('Nothing to show yet')}>
        <p>{t('The overview appears when the server can be watched.')}</p>
      </Empty>
    )
  }
  return (
    <>
      <PageHead />
      {workers.value.length === 0 ? (
        <NoModel>
          <p>{t('Load one, and this page fills by itself.')}</p>
        </NoModel>
      ) : (
        <>
          <Figures />
          <Charts />
        </>
      )}
      <Machine />
    </>
  )
}

/** Falls back to all workers when the chosen one is gone. */
function worker(): string | null {
  return workers.value.some(({ worker_id }) => worker_id === chosen.value) ? chosen.value : null
}

function PageHead() {
  return (
    <div class="page-head">
      <h1>{t('Overview')}</h1>
      <select
        aria-label={t('Worker')}
        value={worker() ?? ''}
        onChange={({ currentTarget }) => {
          chosen.value = currentTarget.value || null
        }}
      >
        <option value="">{t('All workers')}</option>
        {workers.value.map(({ worker_id, model }) => (
          <option key={worker_id} value={worker_id}>
            {model} · {worker_id}
          </option>
        ))}
      </select>
      <select
        aria-label={t('Time span')}
        value={String(seconds.value)}
        onChange={({ currentTarget }) => {
          seconds.value = Number(currentTarget.value)
        }}
      >
        {SPANS.map(([value, name]) => (
          <option key={value} value={String(value)}>
            {t(name)}
          </option>
        ))}
      </select>
    </div>
  )
}

function Figures() {
  const sample = samples.value.at(-1)
  if (sample === undefined) return null
  const part = partOf(sample, worker())
  const figures: readonly [Text, string, string?][] = [
    ['Output tok/s', count(part?.generated_tokens_per_second)],
    ['Input tok/s', count(part?.prompt_tokens_per_second)],
    ['Running', count(part?.running), part ? t('of {n} slots', { n: part.slots }) : ''],
    ['Waiting', count(part?.waiting)],
    ['TTFT p50', milliseconds(sample.ttft_ms.p50), late(sample.ttft_ms)],
    ['ITL p50', milliseconds(sample.itl_ms.p50), late(sample.itl_ms)],
    ['Cache hits', percent(part?.states?.prefix_hit_rate)],
    ['Errors/s', count(sample.requests.errors_per_second)],
  ]
  return (
    <dl class="figures">
      {figures.map(([name, value, note]) => (
        <div key={name}>
          <dt>{t(name)}</dt>
          <dd>
            {value}
            {note && <small>{note}</small>}
          </dd>
        </div>
      ))}
    </dl>
  )
}

function late({ p99 }: Percentiles): string {
  return p99 === null ? '' : `p99 ${milliseconds(p99)}`
}

/** Charts of guessed tokens per second, by source of the guesses. */
const GUESSES = [
  ['grammar', 'Tokens that a grammar leaves no choice about'],
  ['prediction', 'Tokens guessed from predictions'],
  ['lookup', 'Tokens guessed from the text'],
  ['draft', 'Tokens guessed by the draft model'],
] as const

function Charts() {
  const id = worker()
  const part = (read: (one: WorkerSample) => number | null | undefined) => (sample: Sample) => {
    const one = partOf(sample, id)
    return one === null ? null : read(one)
  }
  const common = { samples: samples.value, seconds: seconds.value }
  return (
    <div class="charts" key={id}>
      <Chart
        {...common}
        title={t('Tokens per second')}
        format={count}
        lines={[
          { label: t('generated'), read: part((one) => one.generated_tokens_per_second) },
          { label: t('prompt'), read: part((one) => one.prompt_tokens_per_second) },
        ]}
      />
      <Chart
        {...common}
        title={t('Requests')}
        format={count}
        lines={[
          { label: t('running'), read: part((one) => one.running) },
          { label: t('waiting'), read: part((one) => one.waiting) },
        ]}
      />
      <Chart
        {...common}
        title={t('Time to the first token')}
        format={milliseconds}
        lines={[
          { label: 'p50', read: ({ ttft_ms }) => ttft_ms.p50 },
          { label: 'p99', read: ({ ttft_ms }) => ttft_ms.p99, isDashed: true },
        ]}
      />
      <Chart
        {...common}
        title={t('Time between tokens')}
        format={milliseconds}
        lines={[
          { label: 'p50', read: ({ itl_ms }) => itl_ms.p50 },
          { label: 'p99', read: ({ itl_ms }) => itl_ms.p99, isDashed: true },
        ]}
      />
      <Chart
        {...common}
        title={t('Tokens in a step')}
        format={count}
        lines={[{ label: t('tokens'), read: part((one) => one.batch_tokens) }]}
      />
      <Chart
        {...common}
        title={t('Kept states in use')}
        format={count}
        lines={[
          { label: t('device'), read: part((one) => one.states?.in_slots) },
          { label: t('RAM'), read: part((one) => one.states?.in_memory) },
          { label: t('disk'), read: part((one) => one.states?.on_disk) },
        ]}
      />
      <Chart
        {...common}
        title={t('Prefix cache')}
        format={count}
        lines={[
          { label: t('cached tok/s'), read: part((one) => one.states?.cached_tokens_per_second) },
          { label: t('prefixes'), read: part((one) => one.states?.prefixes), isDashed: true },
        ]}
      />
      {GUESSES.map(([name, title]) =>
        // Most servers use one source of guesses, or none.
        samples.value.some((sample) => part((one) => one.guesses[name].guessed_per_second)(sample)) ? (
          <Chart
            {...common}
            key={name}
            title={t(title)}
            format={count}
            lines={[
              { label: t('accepted'), read: part((one) => one.guesses[name].accepted_per_second) },
              { label: t('guessed'), read: part((one) => one.guesses[name].guessed_per_second), isDashed: true },
            ]}
          />
        ) : null,
      )}
      <Chart
        {...common}
        title={t('Processor')}
        format={percent}
        max={1}
        lines={[
          { label: t('machine'), read: ({ cpu_use }) => cpu_use },
          { label: t('in steps'), read: part((one) => one.busy), isDashed: true },
        ]}
      />
      {(system.value?.gpus ?? []).map(({ index, name }) => (
        <GpuCharts key={index} index={index} name={name} />
      ))}
    </div>
  )
}

function GpuCharts({ index, name }: { readonly index: number; readonly name: string }) {
  const gpu = (sample: Sample) => sample.gpus.find((one) => one.index === index)
  return (
    <Chart
      samples={samples.value}
      seconds={seconds.value}
      title={`GPU ${index} · ${name}`}
      format={percent}
      max={1}
      lines={[
        { label: t('use'), read: (sample) => share(gpu(sample)?.utilisation, 100) },
        {
          label: t('memory'),
          read: (sample) => share(gpu(sample)?.memory_used_mb, gpu(sample)?.memory_total_mb),
          isDashed: true,
        },
      ]}
    />
  )
}

function share(part: number | null | undefined, whole: number | undefined): number | null {
  return part === null || part === undefined || !whole ? null : part / whole
}

function Machine() {
  const { os, cpu, memory, gpus, node } = system.value!
  const free = samples.value.at(-1)?.memory_available_bytes ?? memory.available_bytes
  const rows: readonly [string, string][] = [
    [t('Host'), `${os.hostname} · ${os.platform} ${os.machine} · Node ${node.version}`],
    [t('Processor'), `${cpu.model} · ${t('{n} cores', { n: cpu.cores })}`],
    [t('Memory'), t('{free} free of {total}', { free: bytes(free), total: bytes(memory.total_bytes) })],
    ...gpus.map((gpu): [string, string] => [
      `GPU ${gpu.index}`,
      `${gpu.name} · ${bytes(gpu.memory_total_mb * 2 ** 20)}`,
    ]),
  ]
  return (
    <table class="facts">
      <caption>{t('This machine')}</caption>
      <tbody>
        {rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}
