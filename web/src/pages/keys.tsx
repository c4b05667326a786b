/** Keys: who may use the server, with which role and limits. A secret is shown only once. */
import { useState } from 'preact/hooks'
import { takeKey } from '../lib/api.ts'
import { messageOf } from '../lib/errors.ts'
import { age, bytes, count } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { type IssuedKey, listKeys, type NamedKey, revokeKey, rotateKey } from '../lib/keys.ts'
import { role } from '../lib/live.ts'
import { Badge, Button, CopyButton, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed, Dialog } from '../parts/dialog.tsx'
import { useResource } from '../parts/resource.ts'
import { KeyForm } from './key-form.tsx'

/** The old secret works for this long after a rotation. */
const GRACE_SECONDS = 3600

export function KeysPage() {
  const keys = useResource(listKeys, [])
  /** Null: a new one; undefined: no form is open. */
  const [changed, setChanged] = useState<NamedKey | null | undefined>(undefined)
  const [issued, setIssued] = useState<IssuedKey | null>(null)
  const [error, setError] = useState<string | null>(null)
  const run = (action: Promise<unknown>) => {
    setError(null)
    action.then(keys.refresh).catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  const show = (key: IssuedKey) => {
    // After the first key is made, this page needs a key, too.
    if (keys.value?.length === 0 && role.value === null) takeKey(key.secret)
    setChanged(undefined)
    setIssued(key)
    keys.refresh()
  }
  const rotate = async ({ name }: NamedKey) => {
    const text = t('{name} gets a new secret. The present one works for another hour.', { name })
    if (await confirmed(text, t('Rotate'))) run(rotateKey(name, GRACE_SECONDS).then(setIssued))
  }
  const revoke = async ({ name }: NamedKey) => {
    const text = t('{name} is refused from now on. This cannot be undone.', { name })
    if (await confirmed(text, t('Revoke'))) run(revokeKey(name))
  }
  return (
    <>
      <div class="page-head">
        <h1>{t('Keys')}</h1>
        <Button icon="plus" kind="primary" onClick={() => setChanged(null)}>
          {t('Add a key')}
        </Button>
        <p class="lead">
          {t('Conversations and states belong to the key that made them; no key sees those of another.')}
        </p>
      </div>
      {keys.error !== null && <ErrorNote text={keys.error} onRetry={keys.refresh} />}
      {error !== null && <ErrorNote text={error} />}
      {keys.value === null && keys.error === null && <Loading />}
      {keys.value?.length === 0 && (
        <Empty title={t('No named keys')}>
          <p>
            {t(
              'Anyone who can reach this server may use it, unless it was started with a key. The first key made here must be an admin’s; from then on every request needs a key.',
            )}
          </p>
        </Empty>
      )}
      {keys.value !== null && keys.value.length > 0 && (
        <KeyTable
          keys={keys.value}
          onChange={setChanged}
          onRotate={(key) => void rotate(key)}
          onRevoke={(key) => void revoke(key)}
        />
      )}
      {changed !== undefined && (
        <KeyForm
          isFirst={keys.value?.length === 0}
          old={changed}
          onClose={() => setChanged(undefined)}
          onIssued={show}
          onChanged={() => {
            setChanged(undefined)
            keys.refresh()
          }}
        />
      )}
      {issued !== null && <SecretDialog issued={issued} onClose={() => setIssued(null)} />}
    </>
  )
}

interface KeyTableProps {
  readonly keys: readonly NamedKey[]
  readonly onChange: (key: NamedKey) => void
  readonly onRotate: (key: NamedKey) => void
  readonly onRevoke: (key: NamedKey) => void
}

function KeyTable({ keys, onChange, onRotate, onRevoke }: KeyTableProps) {
  const now = Date.now() / 1000
  return (
    <table class="list keys">
      <thead>
        <tr>
          <th scope="col">{t('Name')}</th>
          <th scope="col">{t('Role')}</th>
          <th scope="col">{t('Limits')}</th>
          <th scope="col">{t('Expires')}</th>
          <th scope="col">
            <span class="unseen">{t('Actions')}</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {keys.map((key) => (
          <tr key={key.name}>
            <th scope="row">
              <b>{key.name}</b>
            </th>
            <td>
              <Badge tone={key.role === 'admin' ? 'device' : 'quiet'}>{t(key.role)}</Badge>
            </td>
            <td class="muted">{limitsOf(key)}</td>
            <td class="muted">{endOf(key, now)}</td>
            <td>
              <span class="actions">
                <Button icon="edit" kind="quiet" onClick={() => onChange(key)}>
                  {t('Change')}
                </Button>
                <Button icon="again" kind="quiet" onClick={() => onRotate(key)}>
                  {t('Rotate')}
                </Button>
                <Button icon="trash" kind="quiet" onClick={() => onRevoke(key)}>
                  {t('Revoke')}
                </Button>
              </span>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function limitsOf({ limits }: NamedKey): string {
  const { requests_per_minute: requests, tokens_per_minute: tokens, rows, stored_bytes } = limits
  const parts = [
    requests === null ? null : t('{n} requests/min', { n: count(requests) }),
    tokens === null ? null : t('{n} tokens/min', { n: count(tokens) }),
    rows === null ? null : t('{n} answers at once', { n: count(rows) }),
    stored_bytes === null ? null : t('{size} of states', { size: bytes(stored_bytes) }),
  ].filter((part) => part !== null)
  return parts.length === 0 ? t('without limits') : parts.join(' · ')
}

function endOf({ expires_at }: NamedKey, now: number): string {
  if (expires_at === null) return t('never')
  return expires_at <= now ? t('expired') : t('in {time}', { time: age(expires_at - now) })
}

interface SecretDialogProps {
  readonly issued: IssuedKey
  readonly onClose: () => void
}

function SecretDialog({ issued: { name, secret }, onClose }: SecretDialogProps) {
  return (
    <Dialog title={t('The key {name}', { name })} onClose={onClose}>
      <p>{t('Copy it now: it is shown only once and stored nowhere.')}</p>
      <div class="secret">
        <code>{secret}</code>
        <CopyButton text={() => secret} label={t('Copy')} />
      </div>
      <footer>
        <Button kind="primary" onClick={onClose}>
          {t('Done')}
        </Button>
      </footer>
    </Dialog>
  )
}
