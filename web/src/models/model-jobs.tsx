/** Downloads and quantisations: progress, and the result of the last ones. */
import type { PullRecord } from '../../../src/gateway/contract.ts'
import { age, bytes } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { Badge } from '../parts/basics.tsx'

/** How many are shown; the server lists more. */
const MOST_SHOWN = 4

export function ModelJobs({ jobs }: { readonly jobs: readonly PullRecord[] }) {
  if (jobs.length === 0) return null
  return (
    <ul class="rows" aria-label={t('Downloads and quantisations')}>
      {jobs.slice(0, MOST_SHOWN).map((one) => (
        <Job key={one.id} job={one} />
      ))}
    </ul>
  )
}

function Job({ job }: { readonly job: PullRecord }) {
  const { kind, name, state, file, done_bytes: done, total_bytes: total, started_at } = job
  const ended = kind === 'fetch' ? t('fetched') : t('quantised')
  return (
    <li class="pull">
      <b>{name}</b>
      {state === 'running' ? (
        <div class="progress">
          <progress value={done} max={Math.max(total, 1)} aria-label={t('Progress')} />
          <small>
            {file ?? (kind === 'fetch' ? t('asking the hub') : t('starting'))} · {bytes(done)} / {bytes(total)}
          </small>
        </div>
      ) : (
        <>
          <Badge tone={state === 'done' ? 'ready' : 'failed'}>{state === 'done' ? ended : t('failed')}</Badge>
          <small class="muted">{job.reason ?? t('{time} ago', { time: age(Date.now() / 1000 - started_at) })}</small>
        </>
      )}
    </li>
  )
}
