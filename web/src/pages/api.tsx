/** API: code snippets with the server's address, the visitor's key, and the routes as the server lists them. */
import { useState } from 'preact/hooks'
import type { OwnKey } from '../../../src/gateway/contract.ts'
import { call, key } from '../lib/api.ts'
import { age, bytes, count } from '../lib/format.ts'
import { language, type Text, t } from '../lib/i18n.ts'
import { SNIPPETS, type SnippetName, snippet } from '../lib/snippets.ts'
import { Badge, Button, CopyButton, ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'
import { TargetSelect } from '../playground/target-select.tsx'
import { type Choice, currentOf, targetOf } from '../playground/targets.ts'
import { ApiRoute, type Operation } from './api-route.tsx'

export function ApiPage() {
  const [chosen, setChosen] = useState<Choice | null>(null)
  const choice = currentOf(chosen)
  return (
    <>
      <div class="page-head">
        <h1>{t('API')}</h1>
        <TargetSelect choice={choice} onChange={setChosen} />
      </div>
      <Snippets choice={choice} />
      {key.value !== '' && <KeyFacts />}
      <Routes />
    </>
  )
}

function Snippets({ choice }: { readonly choice: Choice | null }) {
  const [name, setName] = useState<SnippetName>('curl')
  const target = choice === null ? { base: '', model: 'MODEL' } : targetOf(choice)
  const text = snippet(name, { origin: location.origin + target.base, model: target.model, needsKey: key.value !== '' })
  return (
    <section class="snippet" aria-label={t('Example')}>
      <div class="row">
        <fieldset class="switch" aria-label={t('Language of the example')}>
          {SNIPPETS.map((one) => (
            <Button key={one} isPressed={one === name} onClick={() => setName(one)}>
              {one}
            </Button>
          ))}
        </fieldset>
        <CopyButton text={() => text} label={t('Copy')} />
      </div>
      {/* A region that scrolls must be reachable by keyboard. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre tabIndex={0}>{text}</pre>
    </section>
  )
}

/** What the current key may do, and what is left of its limits. */
export function KeyFacts() {
  const own = useResource((signal) => call<OwnKey>('/v1/me', { signal }), [])
  if (own.error !== null) return <ErrorNote text={own.error} onRetry={own.refresh} />
  if (own.value === null) return <Loading />
  const { name, role, expires_at } = own.value
  const rows = limitsOf(own.value)
  const ends = expires_at === null ? null : expires_at - Date.now() / 1000
  return (
    <section class="own-key" aria-label={t('Your key')}>
      <div class="page-head">
        <h2>{t('Your key')}</h2>
        <code>{name}</code>
        <Badge tone="quiet">{t(role)}</Badge>
        {ends !== null && <small class="muted">{t('ends in {time}', { time: age(ends) })}</small>}
        {rows.length === 0 && <small class="muted">{t('without limits')}</small>}
        <Button icon="again" kind="quiet" label={t('Refresh')} onClick={own.refresh} />
      </div>
      {rows.length > 0 && (
        <dl class="figures">
          {rows.map(([label, left, limit]) => (
            <div key={label}>
              <dt>{t(label)}</dt>
              <dd>
                {left}
                <small>{t('of {n}', { n: limit })}</small>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  )
}

/** For each limit of the key: its name, what is left or used, and the limit. */
function limitsOf({ limits, use }: OwnKey): readonly (readonly [Text, string, string])[] {
  const { requests_per_minute: requests, tokens_per_minute: tokens, rows, stored_bytes } = limits
  const of = (label: Text, used: number | null, limit: number | null, write = count) =>
    limit === null ? [] : [[label, write(used), write(limit)] as const]
  return [
    ...of('Requests left this minute', use.requests_left, requests),
    ...of('Tokens left this minute', use.tokens_left, tokens),
    ...of('Answers running', use.rows, rows),
    ...of('States stored', use.stored_bytes, stored_bytes, bytes),
  ]
}

/** The server's descriptions are in English. */
async function routeNames(): Promise<Readonly<Record<string, string>>> {
  if (language.value === 'en') return {}
  return (await import('../lib/chinese-routes.ts')).ROUTES_IN_CHINESE
}

interface Tag {
  readonly name: string
  readonly description: string
}

interface OpenApi {
  readonly tags: readonly Tag[]
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
}

function Routes() {
  const [search, setSearch] = useState('')
  const page = useResource((signal) => call<OpenApi>('/openapi.json', { signal }), [])
  const names = useResource(routeNames, [language.value])
  if (page.error !== null) return <ErrorNote text={page.error} onRetry={page.refresh} />
  if (page.value === null) return <Loading />
  const routes = Object.entries(page.value.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const summary = names.value?.[operation.summary] ?? operation.summary
      return { path, method, operation: { ...operation, summary } }
    }),
  )
  const wanted = search.toLowerCase()
  const shown = routes.filter(({ path, method, operation: { summary, tags } }) =>
    `${method} ${path} ${summary} ${tags.join(' ')}`.toLowerCase().includes(wanted),
  )
  const groups = page.value.tags
    .map(({ name, description }) => ({
      name,
      title: names.value?.[description] ?? description,
      routes: shown.filter(({ operation }) => operation.tags.includes(name)),
    }))
    .filter((group) => group.routes.length > 0)
  return (
    <section aria-label={t('Routes')}>
      <div class="page-head">
        <h2>{t('Routes')}</h2>
        <input
          type="search"
          aria-label={t('Search the routes')}
          placeholder={t('Search the routes')}
          value={search}
          onInput={({ currentTarget }) => setSearch(currentTarget.value)}
        />
        <small class="muted">
          {shown.length} · <a href="/openapi.json">/openapi.json</a>
        </small>
      </div>
      <nav class="row groups" aria-label={t('Groups of routes')}>
        {groups.map(({ name }) => (
          <Button key={name} kind="chip" onClick={() => jumpTo(name)}>
            {name}
          </Button>
        ))}
      </nav>
      {groups.map(({ name, title, routes: own }, i) => (
        // A search opens its results; without one the first group is open.
        <details key={name} id={groupId(name)} class="group" open={i === 0 || wanted !== ''}>
          <summary>
            <h3>{title}</h3>
            <small class="muted">{own.length}</small>
          </summary>
          <ul class="routes">
            {own.map((one) => (
              <li key={`${one.method} ${one.path}`}>
                <ApiRoute {...one} />
              </li>
            ))}
          </ul>
        </details>
      ))}
    </section>
  )
}

function groupId(name: string): string {
  return `routes-${name}`
}

function jumpTo(name: string): void {
  const group = document.getElementById(groupId(name))
  if (!(group instanceof HTMLDetailsElement)) return
  group.open = true
  group.scrollIntoView()
  group.querySelector('summary')?.focus()
}
