/** A checkpoint of this machine: whether it fits, its workers and its actions. */
import { useState } from 'preact/hooks'
import type { ModelFile, WorkerRecord } from '../../../src/gateway/contract.ts'
import { messageOf } from '../lib/errors.ts'
import { type Fit, fitOn, neededBytes } from '../lib/fit.ts'
import { bareName, bytes } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { role, samples, system, workers } from '../lib/live.ts'
import { deleteModel, startWorker, stopWorker } from '../lib/management.ts'
import { goTo } from '../lib/router.ts'
import { Badge, Button, ErrorNote } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { QuantiseDialog } from './model-quantise.tsx'

const SOURCES: Readonly<Record<ModelFile['source'], Text>> = {
  folder: 'model folder',
  pulled: 'pulled',
  bundled: 'bundled',
}

interface ModelCardProps {
  readonly file: ModelFile
  /** Called when a download or quantisation starts, or a file is deleted. */
  readonly onChange: () => void
}

export function ModelCard({ file, onChange }: ModelCardProps) {
  const [error, setError] = useState<string | null>(null)
  const [isBusy, setBusy] = useState(false)
  const [isRounding, setRounding] = useState(false)
  const own = workersOf(file)
  const [first] = own
  const name = bareName(file.path)
  const mayChange = role.value !== 'operator'
  const run = (action: Promise<unknown>) => {
    setError(null)
    setBusy(true)
    action.catch((thrown: unknown) => setError(messageOf(thrown))).finally(() => setBusy(false))
  }
  const unload = async () => {
    const text = t('All workers of {model} finish their requests and end.', { model: namesOf(own).join(', ') })
    if (!(await confirmed(text, t('Unload')))) return
    run(Promise.all(own.map(({ worker_id }) => stopWorker(worker_id))))
  }
  const remove = async () => {
    const text = t('{name} ({size}) is deleted from the disk. It can be fetched again.', {
      name,
      size: bytes(file.bytes),
    })
    if (await confirmed(text, t('Delete'))) run(deleteModel(file.path).then(onChange))
  }
  return (
    <li class="card model">
      <div class="model-text">
        <h2>{name}</h2>
        <p class="muted">{[bytes(file.bytes), t(SOURCES[file.source]), ...facts(file, own)].join(' · ')}</p>
      </div>
      <div class="model-state">{first === undefined ? <FitBadge file={file} /> : <LoadedBadge workers={own} />}</div>
      <div class="actions">
        {mayChange && (
          <Button kind="quiet" icon="quantise" label={t('Quantise {name}', { name })} onClick={() => setRounding(true)}>
            {t('Quantise')}
          </Button>
        )}
        {mayChange && file.source === 'pulled' && (
          <Button
            kind="quiet"
            icon="trash"
            label={t('Delete {name}', { name })}
            isDisabled={isBusy || first !== undefined}
            onClick={() => void remove()}
          />
        )}
        {first === undefined ? (
          <Button kind="primary" isDisabled={isBusy} onClick={() => run(startWorker({ model_path: file.path }))}>
            {t('Load')}
          </Button>
        ) : (
          <>
            <Button isDisabled={isBusy} onClick={() => void unload()}>
              {t('Unload')}
            </Button>
            <Button
              icon="playground"
              kind="primary"
              isDisabled={first.phase !== 'ready'}
              onClick={() => goTo('playground', first.worker_id)}
            >
              {t('Chat')}
            </Button>
          </>
        )}
      </div>
      {first?.phase === 'loading' && first.progress !== null && (
        <div class="progress">
          <progress value={first.progress.done_bytes} max={first.progress.total_bytes} aria-label={t('Loading')} />
          <small>
            {bytes(first.progress.done_bytes)} / {bytes(first.progress.total_bytes)}
          </small>
        </div>
      )}
      {error !== null && <ErrorNote text={error} />}
      {isRounding && <QuantiseDialog file={file} onClose={() => setRounding(false)} onBegun={onChange} />}
    </li>
  )
}

/** Workers that have loaded the file, or are loading it. */
function workersOf({ path }: ModelFile): WorkerRecord[] {
  return workers.value.filter(
    ({ status, spec, model }) =>
      status === 'running' && (bareName(spec.model_path) === bareName(path) || model === bareName(path)),
  )
}

/** One file can be served under several names, with other weights. */
function namesOf(own: readonly WorkerRecord[]): string[] {
  return [...new Set(own.map(({ model }) => model))]
}

/** What its workers reported, or what one would need. */
function facts({ path, bytes: size }: ModelFile, own: readonly WorkerRecord[]): string[] {
  if (own.length === 0) return [t('needs about {size}', { size: bytes(neededBytes(size)) })]
  const names = namesOf(own)
  const named = names.join() === bareName(path) ? [] : [t('served as {names}', { names: names.join(', ') })]
  const infos = own.flatMap(({ info }) => info ?? [])
  const [info] = infos
  if (info === undefined) return named
  const types = [...new Set(infos.map(({ weight_type }) => weight_type))].join(', ')
  const slots = t('{n} conversations at once', { n: info.slots })
  return [info.architecture, types, slots, `${bytes(info.state_bytes)} ${t('each')}`, ...named]
}

function LoadedBadge({ workers: own }: { readonly workers: readonly WorkerRecord[] }) {
  const ready = own.filter(({ phase }) => phase === 'ready').length
  const [first] = own
  if (ready === 0) return <Badge tone={first!.phase}>{t(phaseText(first!.phase))}</Badge>
  return (
    <Badge tone="ready">
      {own.length === 1 ? t('loaded') : t('{n} of {all} workers ready', { n: ready, all: own.length })}
    </Badge>
  )
}

function phaseText(phase: WorkerRecord['phase']): Text {
  return phase
}

const FITS: Readonly<Record<Fit, Text>> = {
  fits: 'fits ({place})',
  tight: 'tight ({place}): something else must go',
  'too large': 'too large ({place})',
}

function FitBadge({ file }: { readonly file: ModelFile }) {
  const { value: machine } = system
  if (machine === null) return null
  const free = samples.value.at(-1)?.memory_available_bytes ?? machine.memory.available_bytes
  const { place, fit } = fitOn(file.bytes, machine, free)
  return (
    <Badge tone={fit === 'fits' ? 'ready' : fit === 'tight' ? 'loading' : 'failed'}>{t(FITS[fit], { place })}</Badge>
  )
}
