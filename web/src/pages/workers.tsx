/** Workers: running and ended ones with their actions. An opened worker shows its facts and log. */
import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import type { WorkerPhase, WorkerRecord } from '../../../src/gateway/contract.ts'
import { messageOf } from '../lib/errors.ts'
import { age, bytes, count, fileName, percent } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { connection, samples, workers } from '../lib/live.ts'
import { forgetWorker, restartWorker, stopWorker } from '../lib/management.ts'
import { goTo, hashOf, route } from '../lib/router.ts'
import { Badge, Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { WorkerForm } from './worker-form.tsx'
import { WorkerLog } from './worker-log.tsx'

/** The route argument that opens the form. */
const NEW = 'new'

export function WorkersPage() {
  const { argument } = route.value
  const close = () => goTo('workers')
  return (
    <>
      <div class="page-head">
        <h1>{t('Workers')}</h1>
        <Button icon="plus" kind="primary" onClick={() => goTo('workers', NEW)}>
          {t('Start a worker')}
        </Button>
      </div>
      <WorkerList />
      {argument === NEW && <WorkerForm onClose={close} />}
    </>
  )
}

function WorkerList() {
  if (workers.value.length === 0) {
    if (connection.value.state === 'connecting') return <Loading />
    return (
      <Empty title={t('No workers')}>
        <p>{t('A worker is a process that holds one model. Start one to talk to it.')}</p>
      </Empty>
    )
  }
  const newestFirst = [...workers.value].reverse()
  return (
    <ul class="workers">
      {newestFirst.map((worker) => (
        <WorkerCard key={worker.worker_id} worker={worker} />
      ))}
    </ul>
  )
}

const PHASES: Readonly<Record<WorkerPhase, Text>> = {
  loading: 'loading',
  ready: 'ready',
  restarting: 'restarting',
  draining: 'draining',
  stopped: 'stopped',
  failed: 'failed',
}

function WorkerCard({ worker }: { readonly worker: WorkerRecord }) {
  const { worker_id, model, phase, reason, spec } = worker
  const isOpen = route.value.argument === worker_id
  return (
    <li class={`worker ${phase}`} data-worker={worker_id}>
      <div class="worker-head">
        <Badge tone={phase}>{t(PHASES[phase])}</Badge>
        <h2>
          <a href={hashOf('workers', isOpen ? null : worker_id)} aria-expanded={isOpen}>
            {model}
          </a>
        </h2>
        <code>{worker_id}</code>
        <WorkerActions worker={worker} />
      </div>
      {reason !== null && reason !== phase && <p class="reason">{reason}</p>}
      <Progress worker={worker} />
      <WorkerFacts worker={worker} />
      {isOpen && (
        <>
          <p class="path">
            {spec.model_path} · {t('API address')} <code>{worker.endpoint}</code>
          </p>
          <WorkerLog id={worker_id} isEnded={worker.status === 'exited'} />
        </>
      )}
    </li>
  )
}

function Progress({ worker: { progress, phase } }: { readonly worker: WorkerRecord }) {
  if (progress === null || phase !== 'loading') return null
  const { done_bytes, total_bytes } = progress
  return (
    <div class="progress">
      <progress value={done_bytes} max={total_bytes} aria-label={t('Loading')} />
      <small>
        {bytes(done_bytes)} / {bytes(total_bytes)}
      </small>
    </div>
  )
}

function WorkerFacts({ worker }: { readonly worker: WorkerRecord }) {
  const { info, spec, restarts, pid, exit_code, created_at, exited_at } = worker
  const sample = samples.value.at(-1)
  const now = sample?.workers[worker.worker_id]
  const ended = exited_at !== null
  const facts: readonly [Text, ComponentChildren][] = [
    ['Model', info ? `${info.architecture} · ${count(info.num_parameters)}` : modelFile(spec)],
    ['Weights', info ? `${info.weight_type} · ${bytes(info.weight_bytes)}` : (spec.quant ?? '–')],
    ['Device', shortDevice(info?.device) ?? spec.device ?? t('automatic')],
    ['Slots', info ? `${now ? now.slots - now.free_slots : 0} / ${info.slots}` : '–'],
    ['Load', now ? `${count(now.generated_tokens_per_second)} tok/s · ${percent(now.busy)}` : '–'],
    ['Memory', bytes(now?.rss_bytes)],
    ['Restarts', String(restarts)],
    ended ? ['Exit code', exit_code === null ? '–' : String(exit_code)] : ['Process', pid === null ? '–' : String(pid)],
    [ended ? 'Ran for' : 'Age', age((exited_at ?? sample?.at ?? Date.now() / 1000) - created_at)],
  ]
  return (
    <dl class="worker-facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{t(name)}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

/** Removes the brackets of "cuda:0 NVIDIA H200 (9.0, 132 SMs, 140 GiB)". */
function shortDevice(device: string | undefined): string | undefined {
  return device?.replace(/ \(.*$/, '')
}

function modelFile({ model_path }: WorkerRecord['spec']): string {
  return fileName(model_path)
}

function WorkerActions({ worker }: { readonly worker: WorkerRecord }) {
  const { worker_id, model, status } = worker
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<string | null>(null)
  const run = (action: (id: string) => Promise<void>) => {
    setBusy(true)
    setError(null)
    action(worker_id)
      .catch((thrown: unknown) => setError(messageOf(thrown)))
      .finally(() => setBusy(false))
  }
  const ask = async (text: string, action: string, then: () => void) => {
    if (await confirmed(text, action)) then()
  }
  const others = workers.value.filter(
    (one) => one.model === model && one.worker_id !== worker_id && one.phase === 'ready',
  ).length
  const stop = () =>
    void ask(
      others === 0
        ? t('{model} finishes its requests and ends. New requests for it are refused.', { model })
        : t('This worker finishes its requests and ends. {n} others of {model} go on.', {
            n: others,
            model,
          }),
      t('Stop'),
      () => run(stopWorker),
    )
  const restart = () =>
    void ask(t('{model} finishes its requests and is started again.', { model }), t('Restart'), () =>
      run(restartWorker),
    )
  return (
    <div class="actions">
      {status === 'running' && (
        <>
          <Button icon="playground" onClick={() => goTo('playground', worker_id)}>
            {t('Chat')}
          </Button>
          <Button icon="stop" isDisabled={busy} onClick={stop}>
            {t('Stop')}
          </Button>
        </>
      )}
      <Button icon="again" isDisabled={busy} onClick={status === 'running' ? restart : () => run(restartWorker)}>
        {status === 'running' ? t('Restart') : t('Start again')}
      </Button>
      {status === 'exited' && (
        <Button icon="trash" isDisabled={busy} onClick={() => run(forgetWorker)}>
          {t('Forget')}
        </Button>
      )}
      {error !== null && <ErrorNote text={error} />}
    </div>
  )
}
