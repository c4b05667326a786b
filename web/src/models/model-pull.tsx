/** Models from the hub: the released ones by size, others by search or name. */
import { useState } from 'preact/hooks'
import { RELEASED, RELEASED_LICENCE } from '../../../src/hub/released.ts'
import { ApiError, messageOf } from '../lib/errors.ts'
import { bytes } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { startPull } from '../lib/management.ts'
import { Button, Field } from '../parts/basics.tsx'
import { HubResults, Room } from './model-search.tsx'

interface PullFormProps {
  /** Another job is running. */
  readonly isBusy: boolean
  readonly onBegun: () => void
}

export function PullForm({ isBusy, onBegun }: PullFormProps) {
  const [name, setName] = useState('')
  const [error, setError] = useState<string | null>(null)
  const [searched, setSearched] = useState<string | null>(null)
  const pull = (wanted: string) => {
    setError(null)
    startPull(wanted)
      .then(() => {
        setName('')
        onBegun()
      })
      .catch((thrown: unknown) => setError(textOf(thrown)))
  }
  const submit = (event: Event) => {
    event.preventDefault()
    setError(null)
    if (name.trim() !== '') setSearched(name.trim())
  }
  return (
    <section class="pulls" aria-label={t('From the hub')}>
      <h2>{t('From the hub')}</h2>
      <p class="muted">
        {t(
          'Released RWKV-7 models by size (licence {licence}); the newest of each is fetched, verified, and listed above.',
          { licence: RELEASED_LICENCE },
        )}
      </p>
      <ul class="released">
        {RELEASED.map((one) => (
          <Released key={one.name} {...one} isDisabled={isBusy} onPull={() => pull(one.name)} />
        ))}
      </ul>
      <form class="row pull-form" onSubmit={submit}>
        <Field
          label={t('Search the hub')}
          hint={t('Words, or a name to fetch at once: owner/repository, owner/repository:file, rwkv7-g1-0.4b')}
          error={error}
        >
          {(ids) => (
            <input
              {...ids}
              spellcheck={false}
              autocomplete="off"
              value={name}
              onInput={({ currentTarget }) => setName(currentTarget.value)}
            />
          )}
        </Field>
        <Button type="submit" icon="search" isDisabled={name.trim() === ''}>
          {t('Search')}
        </Button>
        <Button icon="download" isDisabled={name.trim() === '' || isBusy} onClick={() => pull(name.trim())}>
          {t('Fetch')}
        </Button>
      </form>
      {searched !== null && <HubResults key={searched} words={searched} isBusy={isBusy} onPull={pull} />}
    </section>
  )
}

/** The API's field name differs from the label. */
function textOf(thrown: unknown): string {
  const text = messageOf(thrown)
  return thrown instanceof ApiError && thrown.field === 'name' ? text.replace(/^name: /, '') : text
}

interface ReleasedProps {
  readonly name: string
  readonly bytes: number
  readonly isDisabled: boolean
  readonly onPull: () => void
}

function Released({ name, bytes: size, isDisabled, onPull }: ReleasedProps) {
  return (
    <li class="card">
      <b>{name}</b>
      <small class="muted">
        {t('about {size}', { size: bytes(size) })}
        <Room bytes={size} />
      </small>
      <Button icon="download" isDisabled={isDisabled} label={t('Fetch {name}', { name })} onClick={onPull} />
    </li>
  )
}
