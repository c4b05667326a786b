/** Requests: key, route, model, result and duration, but never the content. */
import { useEffect, useState } from 'preact/hooks'
import type { RequestRecord } from '../../../src/gateway/contract.ts'
import { call } from '../lib/api.ts'
import { clock, count, milliseconds } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { Badge, Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'

const LOOK_EVERY_MS = 2000

async function listRequests(signal: AbortSignal): Promise<readonly RequestRecord[]> {
  return (await call<{ requests: readonly RequestRecord[] }>('/api/requests', { signal })).requests
}

export function RequestsPage() {
  const { value, error, refresh } = useResource(listRequests, [])
  const [isHeld, setHeld] = useState(false)
  const [search, setSearch] = useState('')
  useEffect(() => {
    if (isHeld) return
    const timer = setInterval(refresh, LOOK_EVERY_MS)
    return () => clearInterval(timer)
  }, [isHeld, refresh])
  const found = (value ?? []).filter((one) => wordsOf(one).includes(search.toLowerCase()))
  return (
    <>
      <div class="page-head">
        <h1>{t('Requests')}</h1>
        <Button icon={isHeld ? 'play' : 'pause'} onClick={() => setHeld(!isHeld)}>
          {isHeld ? t('Resume') : t('Pause updates')}
        </Button>
        <p class="lead">{t('The last 500, since the server started. What was asked and answered is not kept.')}</p>
      </div>
      <input
        type="search"
        aria-label={t('Search')}
        placeholder={t('Key, model, route, status')}
        value={search}
        onInput={({ currentTarget }) => setSearch(currentTarget.value)}
      />
      {error !== null && <ErrorNote text={error} onRetry={refresh} />}
      {value === null && error === null && <Loading />}
      {value !== null && found.length === 0 && <Empty title={t('No requests')} />}
      {found.length > 0 && <RequestTable requests={found} />}
    </>
  )
}

function RequestTable({ requests }: { readonly requests: readonly RequestRecord[] }) {
  return (
    <table class="list requests">
      <thead>
        <tr>
          <th scope="col">{t('Time')}</th>
          <th scope="col">{t('Route')}</th>
          <th scope="col">{t('Model')}</th>
          <th scope="col">{t('Key')}</th>
          <th scope="col">{t('Status')}</th>
          <th scope="col" class="number">
            {t('Prompt')}
          </th>
          <th scope="col" class="number">
            {t('Answer')}
          </th>
          <th scope="col" class="number">
            {t('First token')}
          </th>
          <th scope="col" class="number">
            {t('Total')}
          </th>
        </tr>
      </thead>
      <tbody>
        {requests.map((one) => (
          <tr key={one.id}>
            <td class="muted">{clock(one.at)}</td>
            <th scope="row">
              <code>
                {one.method} {one.route ?? '?'}
              </code>
            </th>
            <td>{one.model ?? '–'}</td>
            <td>{one.key ?? '–'}</td>
            <td>
              <Badge tone={isWell(one) ? 'ready' : 'failed'}>{endOf(one)}</Badge>
            </td>
            <td class="number">{count(one.prompt_tokens)}</td>
            <td class="number">{count(one.answer_tokens)}</td>
            <td class="number">{milliseconds(one.first_token_ms)}</td>
            <td class="number">{milliseconds(one.ms)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function isWell({ status, error, cut_off }: RequestRecord): boolean {
  return status !== null && status < 400 && error === null && !cut_off
}

function endOf({ status, error, cut_off }: RequestRecord): string {
  const parts = [String(status ?? '–'), error ?? '', cut_off ? t('cut off') : '']
  return parts.filter((part) => part !== '').join(' ')
}

function wordsOf({ method, route, model, key, status, error }: RequestRecord): string {
  return [method, route, model, key, status, error].join(' ').toLowerCase()
}
