/** Models: the files of this machine, whether they fit, what is loaded; load, unload, quantise, delete and download. */
import { useEffect, useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { role } from '../lib/live.ts'
import { modelFiles, pulls } from '../lib/management.ts'
import { hashOf } from '../lib/router.ts'
import { Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'
import { ModelCard } from './model-card.tsx'
import { ModelJobs } from './model-jobs.tsx'
import { PullForm } from './model-pull.tsx'

const POLL_MS = 1000

export function ModelsPage() {
  const [search, setSearch] = useState('')
  const files = useResource(modelFiles, [])
  const jobs = useResource(pulls, [])
  const running = jobs.value?.find(({ state }) => state === 'running')
  useEffect(() => {
    if (running === undefined) {
      // Lists the new file.
      files.refresh()
      return
    }
    const timer = setInterval(jobs.refresh, POLL_MS)
    return () => clearInterval(timer)
  }, [running?.id])
  const refresh = () => {
    files.refresh()
    jobs.refresh()
  }
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
        <Button icon="again" label={t('Refresh')} onClick={refresh} />
        <a class="button" href={hashOf('workers', 'new')}>
          {t('Load with options')}
        </a>
        <p class="lead">
          {t('A loaded model is served under its name. Memory is estimated from the size of the file.')}
        </p>
      </div>
      {files.error !== null && <ErrorNote text={files.error} onRetry={files.refresh} />}
      {jobs.error !== null && <ErrorNote text={jobs.error} onRetry={jobs.refresh} />}
      {files.value === null && files.error === null && <Loading />}
      {files.value !== null && files.value.length === 0 && <Empty title={t('No model here yet')} />}
      {files.value !== null && files.value.length > 0 && shown.length === 0 && (
        <p class="muted">{t('Nothing found')}</p>
      )}
      <ModelJobs jobs={jobs.value ?? []} />
      <ul class="model-list">
        {shown.map((file) => (
          <ModelCard key={file.path} file={file} onChange={refresh} />
        ))}
      </ul>
      {role.value !== 'operator' && <PullForm isBusy={running !== undefined} onBegun={jobs.refresh} />}
    </>
  )
}
