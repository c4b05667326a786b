/** The dialog that makes or changes a key. */
import { useState } from 'preact/hooks'
import { ApiError, messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { addKey, changeKey, type IssuedKey, type KeyTerms, type NamedKey } from '../lib/keys.ts'
import { Button, ErrorNote, Field } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'

interface KeyFormProps {
  readonly isFirst: boolean
  /** The key to change; null: a new one. */
  readonly old: NamedKey | null
  readonly onClose: () => void
  readonly onIssued: (key: IssuedKey) => void
  readonly onChanged: () => void
}

const DAY = 86_400

const LIMITS = [
  ['requests_per_minute', 'Requests a minute'],
  ['tokens_per_minute', 'Tokens a minute'],
  ['rows', 'Answers at once'],
] as const

export function KeyForm({ isFirst, old, onClose, onIssued, onChanged }: KeyFormProps) {
  const [name, setName] = useState(old?.name ?? (isFirst ? 'admin' : ''))
  const [role, setRole] = useState<KeyTerms['role']>(old?.role ?? (isFirst ? 'admin' : 'user'))
  const [days, setDays] = useState('')
  const [limits, setLimits] = useState<Readonly<Record<string, string>>>(() =>
    Object.fromEntries(LIMITS.map(([field]) => [field, String(old?.limits[field] ?? '')])),
  )
  const [error, setError] = useState<unknown>(null)
  const errorOf = (field: string) =>
    error instanceof ApiError && error.field?.replace('/', '') === field ? error.message : null
  const isElsewhere = error !== null && !['name', 'role', 'expires_in_seconds'].some((field) => errorOf(field))
  const submit = (event: Event) => {
    event.preventDefault()
    const terms: KeyTerms = {
      role,
      ...(days.trim() === '' ? {} : { expires_in_seconds: Math.round(Number(days) * DAY) || null }),
      limits: Object.fromEntries(
        Object.entries(limits).map(([field, value]) => [field, value.trim() === '' ? null : Number(value)]),
      ),
    }
    const done = old === null ? addKey(name.trim(), terms).then(onIssued) : changeKey(name, terms).then(onChanged)
    done.catch(setError)
  }
  return (
    <Dialog title={old === null ? t('Add a key') : t('Change the key {name}', { name })} onClose={onClose}>
      <form onSubmit={submit}>
        {old === null && (
          <Field label={t('Name')} hint={t('Letters, digits, dots and dashes')} error={errorOf('name')}>
            {(ids) => <input {...ids} value={name} onInput={({ currentTarget }) => setName(currentTarget.value)} />}
          </Field>
        )}
        <Field label={t('Role')} hint={roleHint(role)} error={errorOf('role')}>
          {(ids) => (
            <select
              {...ids}
              value={role}
              // The options below are all possible values.
              onChange={({ currentTarget }) => setRole(currentTarget.value as KeyTerms['role'])}
            >
              <option value="user">{t('user')}</option>
              <option value="operator">{t('operator')}</option>
              <option value="admin">{t('admin')}</option>
            </select>
          )}
        </Field>
        <Field
          label={t('Days until it expires')}
          hint={old === null ? t('Empty: never') : t('Empty: as it is; 0: never')}
          error={errorOf('expires_in_seconds')}
        >
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
        <details open={old !== null}>
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
            {old === null ? t('Add') : t('Save')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}

function roleHint(role: KeyTerms['role']): string {
  if (role === 'user') return t('Talks, translates, and sees its own sessions')
  return role === 'operator' ? t('Also watches the server and loads models') : t('Also makes keys and fetches models')
}
