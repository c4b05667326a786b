/** Models: what this machine has, whether it fits, what is loaded; load, unload, and fetch more from the hub. */
import { useState } from 'preact/hooks'
import type { ModelFile, WorkerRecord } from '../../../src/gateway/contract.ts'
import { messageOf } from '../lib/errors.ts'
import { type Fit, fitOn } from '../lib/fit.ts'
import { bytes } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { role, samples, system, workers } from '../lib/live.ts'
import { modelFiles, startWorker, stopWorker } from '../lib/management.ts'
import { goTo, hashOf } from '../lib/router.ts'
import { Badge, Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { useResource } from '../parts/resource.ts'
import { PullForm } from './model-pull.tsx'

const SOURCES: Readonly<Record<ModelFile['source'], Text>> = {
  folder: 'model folder',
  pulled: 'pulled',
  bundled: 'bundled',
}

export function ModelsPage() {
  const [search, setSearch] = useState('')
  const files = useResource(modelFiles, [])
  const wanted = search.trim().toLowerCase()
  const shown = (files.value ?? []).filter(({ path }) => path.toLowerCase().includes(wanted))
  return (
    <>
      <div class="page-head">
        <h1>{t('Models')}</h1>
        <input
          type="search"
          aria-label={t('Search the models')}
          placeholder={t('Search')}
          value={search}
          onInput={({ currentTarget }) => setSearch(currentTarget.value)}
        />
        <Button icon="again" label={t('Refresh')} onClick={files.refresh} />
        <a class="button" href={hashOf('workers', 'new')}>
          {t('Load with options')}
        </a>
        <p class="lead">
          {t(
            'Load one and it is served under its name. Room is estimated from the size of the file.',
          )}
        </p>
      </div>
      {files.error !== null && <ErrorNote text={files.error} onRetry={files.refresh} />}
      {files.value === null && files.error === null && <Loading />}
      {files.value !== null && files.value.length === 0 && <Empty title={t('No model here yet')} />}
      {files.value !== null && files.value.length > 0 && shown.length === 0 && (
        <p class="muted">{t('Nothing found')}</p>
      )}
      <ul class="models">
        {shown.map((file) => (
          <ModelCard key={file.path} file={file} />
        ))}
      </ul>
      {role.value !== 'operator' && <PullForm onDone={files.refresh} />}
    </>
  )
}

/** Workers that have the file, or are about to. */
function workersOf({ path }: ModelFile): WorkerRecord[] {
  const bare = (name: string) => name.replace(/\.(pth|safetensors|gguf|st|bin)$/i, '')
  return workers.value.filter(
    ({ status, spec, model }) =>
      status === 'running' && (bare(spec.model_path) === bare(path) || model === bare(path)),
  )
}

function ModelCard({ file }: { readonly file: ModelFile }) {
  const [error, setError] = useState<string | null>(null)
  const [isBusy, setBusy] = useState(false)
  const own = workersOf(file)
  const [first] = own
  const run = (action: Promise<unknown>) => {
    setError(null)
    setBusy(true)
    action.catch((thrown: unknown) => setError(messageOf(thrown))).finally(() => setBusy(false))
  }
  const unload = async () => {
    const text = t('{model} finishes its requests and ends, on all its workers.', {
      model: first!.model,
    })
    if (!(await confirmed(text, t('Unload')))) return
    run(Promise.all(own.map(({ worker_id }) => stopWorker(worker_id))))
  }
  return (
    <li class="card model">
      <div class="model-text">
        <h2>{file.path.replace(/\.(pth|safetensors|gguf|st|bin)$/i, '')}</h2>
        <p class="muted">
          {bytes(file.bytes)} · {t(SOURCES[file.source])}
          {first?.info && ` · ${first.info.architecture} · ${first.info.weight_type}`}
        </p>
      </div>
      <div class="model-state">
        {first === undefined ? <FitBadge file={file} /> : <LoadedBadge workers={own} />}
      </div>
      <div class="actions">
        {first === undefined ? (
          <Button
            kind="primary"
            isDisabled={isBusy}
            onClick={() => run(startWorker({ model_path: file.path }))}
          >
            {t('Load')}
          </Button>
        ) : (
          <>
            <Button
              icon="playground"
              isDisabled={first.phase !== 'ready'}
              onClick={() => goTo('playground', first.worker_id)}
            >
              {t('Chat')}
            </Button>
            <Button isDisabled={isBusy} onClick={() => void unload()}>
              {t('Unload')}
            </Button>
          </>
        )}
      </div>
      {first?.phase === 'loading' && first.progress !== null && (
        <div class="progress">
          <progress
            value={first.progress.done_bytes}
            max={first.progress.total_bytes}
            aria-label={t('Loading')}
          />
          <small>
            {bytes(first.progress.done_bytes)} / {bytes(first.progress.total_bytes)}
          </small>
        </div>
      )}
      {error !== null && <ErrorNote text={error} />}
    </li>
  )
}

function LoadedBadge({ workers: own }: { readonly workers: readonly WorkerRecord[] }) {
  const ready = own.filter(({ phase }) => phase === 'ready').length
  const [first] = own
  if (ready === 0) return <Badge tone={first!.phase}>{t(phaseText(first!.phase))}</Badge>
  return (
    <Badge tone="ready">
      {own.length === 1
        ? t('loaded')
        : t('{n} of {all} workers ready', { n: ready, all: own.length })}
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
    <Badge tone={fit === 'fits' ? 'ready' : fit === 'tight' ? 'loading' : 'failed'}>
      {t(FITS[fit], { place })}
    </Badge>
  )
}
