/** Home: first steps, and an overview of models, conversations and the server. */
import { useEffect } from 'preact/hooks'
import { conversations, followConversations, nameOf } from '../conversations/list.ts'
import { key } from '../lib/api.ts'
import { age, count } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { connection, models, role, samples, workers } from '../lib/live.ts'
import { hashOf } from '../lib/router.ts'
import { snippet } from '../lib/snippets.ts'
import { partOf } from '../lib/stats.ts'
import { FirstModel } from '../models/first-model.tsx'
import { Badge, CopyButton, Loading } from '../parts/basics.tsx'
import { Icon, type IconName } from '../parts/icons.tsx'

const MOST_RECENT = 5

export function HomePage() {
  if (connection.value.state === 'keyless') return <Welcome text={t('Enter a key to go on.')} />
  if (models.value === null) return <Loading />
  return models.value.length === 0 ? <FirstRun /> : <Running />
}

function Welcome({ text }: { readonly text: string }) {
  return (
    <div class="hero">
      <h1>{t('Welcome to Skein')}</h1>
      <p class="lead">{text}</p>
    </div>
  )
}

/** Shown while no model is served: the three steps to a first answer. */
function FirstRun() {
  const canLoad = connection.value.state === 'live'
  return (
    <>
      <Welcome
        text={
          canLoad
            ? t('Three steps to a first answer.')
            : t('No model is running, and this key cannot load one: ask who runs the server.')
        }
      />
      <ol class="steps">
        <Step
          n={1}
          title={t('Load a model')}
          text={t('From this machine or from the hub. The bundled demo model starts in a second.')}
          action={{ page: 'models', label: 'Choose a model', isPrimary: true }}
        />
        <Step
          n={2}
          title={t('Talk to it')}
          text={t('Conversations are kept as states of a fixed size: go back, branch and compare at no cost.')}
          action={{ page: 'playground', label: 'Open the chat' }}
        />
        <Step
          n={3}
          title={t('Connect your programs')}
          text={t('Any program for the OpenAI API works with this server: give it the address below.')}
          action={{ page: 'api', label: 'See examples' }}
        />
      </ol>
      <Address />
    </>
  )
}

interface StepProps {
  readonly n: number
  readonly title: string
  readonly text: string
  readonly action: {
    readonly page: 'models' | 'playground' | 'api'
    readonly label: Text
    readonly isPrimary?: boolean
  }
}

function Step({ n, title, text, action }: StepProps) {
  return (
    <li class="card step">
      <span class="step-number">{n}</span>
      <h2>{title}</h2>
      <p class="muted">{text}</p>
      <a class={action.isPrimary ? 'button primary' : 'button'} href={hashOf(action.page)}>
        {t(action.label)}
      </a>
    </li>
  )
}

function Running() {
  return (
    <>
      <div class="page-head">
        <h1>{t('Home')}</h1>
        <a class="button primary" href={hashOf('playground')}>
          <Icon name="playground" />
          {t('Open the chat')}
        </a>
      </div>
      <FirstModel />
      <Now />
      <div class="tiles">
        <Models />
        <Recent />
      </div>
      <Shortcuts />
      <Address />
    </>
  )
}

/** Shown only to keys that may watch the server. */
function Now() {
  const sample = samples.value.at(-1)
  const part = sample === undefined ? null : partOf(sample, null)
  if (part === null) return null
  const ready = workers.value.filter(({ phase }) => phase === 'ready').length
  const figures: readonly [Text, string][] = [
    ['Workers ready', String(ready)],
    ['Running', count(part.running)],
    ['Waiting', count(part.waiting)],
    ['Output tok/s', count(part.generated_tokens_per_second)],
    ['Sessions used', count(part.states?.sessions)],
  ]
  return (
    <dl class="figures">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{t(name)}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

function Models() {
  const own = (models.value ?? []).filter(({ root }) => root === undefined)
  return (
    <section class="card">
      <header class="card-head">
        <h2>{t('Models')}</h2>
        {connection.value.state === 'live' && (
          <a class="button quiet" href={hashOf('models')}>
            {t('Manage')}
          </a>
        )}
      </header>
      <ul class="rows">
        {own.map(({ id, state }) => (
          <li key={id}>
            <b>{id}</b>
            <Badge tone={state}>{t(stateText(state))}</Badge>
          </li>
        ))}
      </ul>
    </section>
  )
}

function stateText(state: string): Text {
  if (state === 'loading' || state === 'restarting' || state === 'failed') return state
  return state === 'ready' ? 'ready' : 'stopped'
}

function Recent() {
  useEffect(followConversations, [])
  const list = (conversations.value ?? []).slice(0, MOST_RECENT)
  return (
    <section class="card">
      <header class="card-head">
        <h2>{t('Continue')}</h2>
        <a class="button quiet" href={hashOf('playground')}>
          {t('All conversations')}
        </a>
      </header>
      {list.length === 0 && <p class="muted">{t('Your conversations are listed here.')}</p>}
      <ul class="rows">
        {list.map((one) => (
          <li key={`${one.model}/${one.id}`}>
            <a href={hashOf('playground', one.model, one.id)}>{nameOf(one)}</a>
            <small class="muted">{t('{time} ago', { time: age(Date.now() / 1000 - one.updated) })}</small>
          </li>
        ))}
      </ul>
    </section>
  )
}

interface Shortcut {
  readonly icon: IconName
  readonly page: 'translate' | 'batch' | 'playground' | 'keys' | 'overview' | 'api'
  /** A link to a page outside the dashboard. */
  readonly href?: string
  readonly title: Text
  readonly text: Text
}

const SHORTCUTS: readonly Shortcut[] = [
  { icon: 'compare', page: 'playground', title: 'Compare two models', text: 'One question, two answers side by side.' },
  { icon: 'translate', page: 'translate', title: 'Translate a text', text: 'Paragraphs as rows of one batch.' },
  { icon: 'batch', page: 'batch', title: 'Fill a batch', text: '512 texts continued at once.' },
  { icon: 'overview', page: 'overview', title: 'Watch the server', text: 'Charts of ten minutes.' },
  { icon: 'keys', page: 'keys', title: 'Give out keys', text: 'Each with a role and limits.' },
  {
    icon: 'machines',
    page: 'playground',
    href: '/browser/',
    title: 'Run a model in this browser',
    text: 'The demo model on your own GPU.',
  },
]

function Shortcuts() {
  const isWatched = connection.value.state === 'live'
  const mayKeep = isWatched && role.value !== 'operator'
  const shown = SHORTCUTS.filter(({ page }) => (page === 'keys' ? mayKeep : page !== 'overview' || isWatched))
  return (
    <ul class="shortcuts">
      {shown.map(({ icon, page, href, title, text }) => (
        <li key={title}>
          <a class="card" href={href ?? hashOf(page)}>
            <Icon name={icon} />
            <b>{t(title)}</b>
            <span class="muted">{t(text)}</span>
          </a>
        </li>
      ))}
    </ul>
  )
}

/** The address for other programs. */
function Address() {
  const base = `${location.origin}/v1`
  const model = models.value?.[0]?.id ?? 'MODEL'
  const curl = snippet('curl', { origin: location.origin, model, needsKey: key.value !== '' })
  return (
    <section class="card address" aria-label={t('Connect a program')}>
      <header class="card-head">
        <h2>{t('Connect a program')}</h2>
        <a class="button quiet" href={hashOf('api')}>
          {t('More examples')}
        </a>
      </header>
      <div class="row">
        <span class="muted">{t('API address')}</span>
        <code>{base}</code>
        <CopyButton text={() => base} title={t('Copy the address')} />
      </div>
      <div class="code">
        <div class="code-head">
          <small>curl</small>
          <CopyButton text={() => curl} />
        </div>
        {/* A region that scrolls must be reachable by keyboard. */}
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
        <pre tabIndex={0}>{curl}</pre>
      </div>
    </section>
  )
}
