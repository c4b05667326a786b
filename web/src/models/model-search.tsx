/** Results of a hub search: repositories, and when opened their models, each with a download button. */
import { useState } from 'preact/hooks'
import type { HubModel, HubRepository, SystemInfo } from '../../../src/gateway/contract.ts'
import { fitOn } from '../lib/fit.ts'
import { bytes, count } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { samples, system } from '../lib/live.ts'
import { hubModels, searchHub } from '../lib/management.ts'
import { Button, ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'

interface HubResultsProps {
  readonly words: string
  readonly isBusy: boolean
  readonly onPull: (name: string) => void
}

export function HubResults({ words, isBusy, onPull }: HubResultsProps) {
  const found = useResource((signal) => searchHub(words, signal), [words])
  if (found.error !== null) return <ErrorNote text={found.error} onRetry={found.refresh} />
  if (found.value === null) return <Loading />
  if (found.value.length === 0) return <p class="muted">{t('Nothing found')}</p>
  return (
    <ul class="rows hub-results" aria-label={t('On the hub')}>
      {found.value.map((one) => (
        <Repository key={one.name} {...one} isBusy={isBusy} onPull={onPull} />
      ))}
    </ul>
  )
}

type RepositoryProps = HubRepository & Omit<HubResultsProps, 'words'>

function Repository({ name, downloads, likes, is_gated, isBusy, onPull }: RepositoryProps) {
  const [isOpen, setOpen] = useState(false)
  return (
    <li>
      <details onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
        <summary>
          <b>{name}</b>
          <small class="muted">
            {t('{n} downloads · {likes} likes', { n: count(downloads), likes: count(likes) })}
            {is_gated && ` · ${t('its owner must grant access')}`}
          </small>
        </summary>
        {isOpen && <Models repository={name} isBusy={isBusy} onPull={onPull} />}
      </details>
    </li>
  )
}

type ModelsProps = Omit<HubResultsProps, 'words'> & { readonly repository: string }

function Models({ repository, isBusy, onPull }: ModelsProps) {
  const models = useResource((signal) => hubModels(repository, signal), [repository])
  if (models.error !== null) return <ErrorNote text={models.error} onRetry={models.refresh} />
  if (models.value === null) return <Loading />
  if (models.value.length === 0) return <p class="muted">{t('No file in it that Skein could load')}</p>
  return (
    <ul class="found">
      {models.value.map((one) => (
        <Found key={one.name} {...one} isBusy={isBusy} onPull={onPull} />
      ))}
    </ul>
  )
}

type FoundProps = HubModel & Omit<HubResultsProps, 'words'>

function Found({ name, file, bytes: size, isBusy, onPull }: FoundProps) {
  return (
    <li>
      <span>{file === '' ? t('the whole repository') : file}</span>
      <small class="muted">
        {bytes(size)}
        <Room bytes={size} />
      </small>
      <Button icon="download" isDisabled={isBusy} label={t('Fetch {name}', { name })} onClick={() => onPull(name)} />
    </li>
  )
}

/** Says so if there is none. */
export function Room({ bytes: size }: { readonly bytes: number }) {
  const { value: machine } = system
  if (machine === null) return null
  const { place, fit } = fitOn(size, machine, freeNow(machine))
  return fit === 'too large' ? <> · {t('too large ({place})', { place })}</> : null
}

function freeNow({ memory }: SystemInfo): number {
  return samples.value.at(-1)?.memory_available_bytes ?? memory.available_bytes
}
