/** The dialog that makes a key. */
import { useState } from 'preact/hooks'
import { ApiError, messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { addKey, type IssuedKey, type NewKey } from '../lib/keys.ts'
import { Button, ErrorNote, Field } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'

interface KeyFormProps {
  readonly isFirst: boolean
  readonly onClose: () => void
  readonly onIssued: (key: IssuedKey) => void
}

const DAY = 86_400

const LIMITS = [
  ['requests_per_minute', 'Requests a minute'],
  ['tokens_per_minute', 'Tokens a minute'],
  ['rows', 'Answers at once'],
] as const

export function KeyForm({ isFirst, onClose, onIssued }: KeyFormProps) {
  const [name, setName] = useState(isFirst ? 'admin' : '')
  const [role, setRole] = useState<NewKey['role']>(isFirst ? 'admin' : 'user')
  const [days, setDays] = useState('')
  const [limits, setLimits] = useState<Readonly<Record<string, string>>>({})
  const [error, setError] = useState<unknown>(null)
  const errorOf = (field: string) =>
    error instanceof ApiError && error.field?.replace('/', '') === field ? error.message : null
  const isElsewhere = error !== null && !['name', 'role', 'expires_in_seconds'].some((field) => errorOf(field))
  const submit = (event: Event) => {
    event.preventDefault()
    const bounds = Object.entries(limits).filter(([, value]) => value.trim() !== '')
    addKey({
      name: name.trim(),
      role,
      ...(days.trim() === '' ? {} : { expires_in_seconds: Math.round(Number(days) * DAY) }),
      ...(bounds.length === 0
        ? {}
        : { limits: Object.fromEntries(bounds.map(([field, value]) => [field, Number(value)])) }),
    })
      .then(onIssued)
      .catch(setError)
  }
  return (
    <Dialog title={t('Add a key')} onClose={onClose}>
      <form onSubmit={submit}>
        <Field label={t('Name')} hint={t('Letters, digits, dots and dashes')} error={errorOf('name')}>
          {(ids) => <input {...ids} value={name} onInput={({ currentTarget }) => setName(currentTarget.value)} />}
        </Field>
        <Field label={t('Role')} hint={roleHint(role)} error={errorOf('role')}>
          {(ids) => (
            <select
              {...ids}
              value={role}
              // The options below are all possible values.
              onChange={({ currentTarget }) => setRole(currentTarget.value as NewKey['role'])}
            >
              <option value="user">{t('user')}</option>
              <option value="operator">{t('operator')}</option>
              <option value="admin">{t('admin')}</option>
            </select>
          )}
        </Field>
        <Field label={t('Days until it expires')} hint={t('Empty: never')} error={errorOf('expires_in_seconds')}>
          {(ids) => (
            <input
              {...ids}
              type="number"
              min={0}
              step="any"
              value={days}
              onInput={({ currentTarget }) => setDays(currentTarget.value)}
            />
          )}
        </Field>
        <details>
          <summary>{t('Limits')}</summary>
          <div class="columns narrow">
            {LIMITS.map(([field, label]) => (
              <Field key={field} label={t(label)}>
                {(ids) => (
                  <input
                    {...ids}
                    type="number"
                    min={1}
                    value={limits[field] ?? ''}
                    onInput={({ currentTarget }) => setLimits({ ...limits, [field]: currentTarget.value })}
                  />
                )}
              </Field>
            ))}
          </div>
        </details>
        {isElsewhere && <ErrorNote text={messageOf(error)} />}
        <footer>
          <Button onClick={onClose}>{t('Cancel')}</Button>
          <Button kind="primary" type="submit" isDisabled={name.trim() === ''}>
            {t('Add')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}

function roleHint(role: NewKey['role']): string {
  if (role === 'user') return t('Talks, translates, and sees its own sessions')
  return role === 'operator' ? t('Also watches the server and loads models') : t('Also makes keys and fetches models')
}
