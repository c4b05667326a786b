/** The frame around every page: navigation, state of the connection, the key, theme and language. */
import { Fragment, type JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { forgetKey, isKeyWanted, key, takeKey } from './lib/api.ts'
import { cluster } from './lib/cluster.ts'
import { language, type Text, t, toggleLanguage } from './lib/i18n.ts'
import { connection, role, system, workers } from './lib/live.ts'
import { nextTheme, type Theme, theme } from './lib/preferences.ts'
import { hashOf, type Page, route } from './lib/router.ts'
import { ModelsPage } from './models/models.tsx'
import { ApiPage } from './pages/api.tsx'
import { BatchPage } from './pages/batch.tsx'
import { DocsPage } from './pages/docs.tsx'
import { HomePage } from './pages/home.tsx'
import { KeysPage } from './pages/keys.tsx'
import { MachinesPage } from './pages/machines.tsx'
import { OverviewPage } from './pages/overview.tsx'
import { RequestsPage } from './pages/requests.tsx'
import { SessionsPage } from './pages/sessions.tsx'
import { SettingsPage } from './pages/settings.tsx'
import { WorkersPage } from './pages/workers.tsx'
import { Button, Field } from './parts/basics.tsx'
import { ConfirmDialog, Dialog } from './parts/dialog.tsx'
import { Goose, Icon } from './parts/icons.tsx'
import { PlaygroundPage } from './playground/playground.tsx'
import { TranslatePage } from './translate/translate.tsx'

const NAMES: Readonly<Record<Page, Text>> = {
  home: 'Home',
  models: 'Models',
  keys: 'Keys',
  overview: 'Overview',
  machines: 'Machines',
  workers: 'Workers',
  playground: 'Chat',
  sessions: 'Sessions',
  translate: 'Translate',
  batch: 'Batch',
  requests: 'Requests',
  api: 'API',
  docs: 'Docs',
  settings: 'Settings',
}

const VIEWS: Readonly<Record<Page, () => JSX.Element>> = {
  home: HomePage,
  models: ModelsPage,
  keys: KeysPage,
  overview: OverviewPage,
  machines: MachinesPage,
  workers: WorkersPage,
  playground: PlaygroundPage,
  sessions: SessionsPage,
  translate: TranslatePage,
  batch: BatchPage,
  requests: RequestsPage,
  api: ApiPage,
  docs: DocsPage,
  settings: SettingsPage,
}

export function App() {
  const { page } = route.value
  const main = useRef<HTMLElement>(null)
  useEffect(() => {
    document.title = `${t(NAMES[page])} · Skein`
  })
  const View = VIEWS[page]
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        {t('Skip to the content')}
      </button>
      <Sidebar />
      <main ref={main} tabIndex={-1} class={page}>
        <ConnectionNote />
        <View key={page} />
      </main>
      <KeyDialog />
      <ConfirmDialog />
    </>
  )
}

interface Group {
  readonly title: Text | null
  readonly pages: readonly Page[]
}

const GROUPS: readonly Group[] = [
  { title: null, pages: ['home', 'playground', 'translate', 'batch'] },
  { title: 'Server', pages: ['models', 'workers', 'overview', 'machines', 'requests', 'sessions'] },
  { title: 'Access', pages: ['keys', 'api'] },
  { title: 'More', pages: ['docs', 'settings'] },
]

/** On a phone the other pages are behind "More". */
const FIRST_PAGES: readonly Page[] = ['home', 'playground', 'translate', 'models']

function Sidebar() {
  const [isAll, setAll] = useState(false)
  const { page: here } = route.value
  useEffect(() => setAll(false), [here])
  return (
    <header class="sidebar">
      <a class="brand" href={hashOf('home')}>
        <Goose />
        <strong>Skein</strong>
        <small>{system.value?.skein.version ?? ''}</small>
      </a>
      <nav aria-label={t('Pages')} class={isAll ? 'all' : ''}>
        {GROUPS.map(({ title, pages }) => (
          <Fragment key={title}>
            {title !== null && <span class="group">{t(title)}</span>}
            {pages.filter(isOffered).map((page) => (
              <a
                key={page}
                class={FIRST_PAGES.includes(page) ? '' : 'second'}
                href={hashOf(page)}
                aria-current={here === page ? 'page' : undefined}
              >
                <Icon name={page} />
                <span>{t(NAMES[page])}</span>
                {page === 'workers' && <Troubled />}
              </a>
            ))}
          </Fragment>
        ))}
        <button type="button" class="more-pages" aria-expanded={isAll} onClick={() => setAll(!isAll)}>
          <Icon name="menu" />
          <span>{t('More')}</span>
        </button>
      </nav>
      <Preferences />
    </header>
  )
}

/** Leaves out pages that this key, or this address, may not use. */
function isOffered(page: Page): boolean {
  const { state } = connection.value
  if (state === 'refused' || state === 'absent') {
    if (page === 'machines') return cluster.value !== null
    return !['models', 'workers', 'overview', 'requests', 'keys'].includes(page)
  }
  return page !== 'keys' || role.value !== 'operator'
}

/** The number of workers that have a problem. */
function Troubled() {
  const count = workers.value.filter(({ phase }) => phase === 'failed' || phase === 'restarting').length
  return count === 0 ? null : <span class="count">{count}</span>
}

const THEME_NAMES: Readonly<Record<Theme, Text>> = {
  system: 'Theme: as the system',
  light: 'Theme: light',
  dark: 'Theme: dark',
}

function Preferences() {
  const other = language.value === 'en' ? '中文' : 'English'
  return (
    <div class="preferences">
      <ConnectionDot />
      <Button kind="quiet" icon={theme.value} label={t(THEME_NAMES[theme.value])} onClick={nextTheme} />
      <Button kind="quiet" onClick={toggleLanguage}>
        {other}
      </Button>
      {key.value !== '' && <Button kind="quiet" icon="key" label={t('Forget the key')} onClick={forgetKey} />}
    </div>
  )
}

function ConnectionDot() {
  const { state } = connection.value
  const texts: Readonly<Record<typeof state, Text>> = {
    live: 'Live',
    connecting: 'Connecting',
    waiting: 'Not connected',
    refused: 'Not allowed to watch',
    keyless: 'A key is needed',
    absent: 'Models only',
  }
  return (
    <span class={`dot ${state}`} role="status">
      {t(texts[state])}
      {role.value !== null && <small> · {t(role.value)}</small>}
    </span>
  )
}

/** Says that the page shows old data, and why. */
function ConnectionNote() {
  const now = connection.value
  const [seconds, setSeconds] = useState(0)
  useEffect(() => {
    if (now.state !== 'waiting') return
    const count = () => setSeconds(Math.max(0, Math.ceil((now.at - Date.now()) / 1000)))
    count()
    const timer = setInterval(count, 500)
    return () => clearInterval(timer)
  }, [now])
  if (now.state === 'refused') {
    return (
      <div class="note" role="status">
        {t('This key may use models, but not watch or manage the server.')}
      </div>
    )
  }
  if (now.state === 'absent') {
    return (
      <div class="note" role="status">
        {cluster.value === null
          ? t('This address belongs to one worker: you can use its model, but manage nothing.')
          : t('This is a gateway of a cluster: its nodes are on the page Machines.')}
      </div>
    )
  }
  if (now.state === 'keyless') {
    return (
      <div class="note" role="status">
        <span>{t('This server asks for a key.')}</span>
        <Button icon="key" onClick={askForKey}>
          {t('Enter a key')}
        </Button>
      </div>
    )
  }
  if (now.state !== 'waiting') return null
  return (
    <div class="note warning" role="status">
      {t('Connection lost ({reason}); next try in {n} s', { reason: now.reason, n: seconds })}
    </div>
  )
}

function askForKey(): void {
  isKeyWanted.value = true
}

function KeyDialog() {
  const [value, setValue] = useState('')
  if (!isKeyWanted.value) return null
  const submit = (event: Event) => {
    event.preventDefault()
    if (value.trim() === '') return
    takeKey(value.trim())
    setValue('')
  }
  const close = () => {
    isKeyWanted.value = false
  }
  return (
    <Dialog title={t('A key is needed')} onClose={close}>
      <form onSubmit={submit}>
        <Field
          label={t('Key')}
          hint={t('Kept by this tab until it is closed, and sent to this server only.')}
          error={key.value === '' ? null : t('The server does not know this key.')}
        >
          {(ids) => (
            <input
              {...ids}
              type="password"
              autocomplete="current-password"
              value={value}
              onInput={(event) => setValue(event.currentTarget.value)}
            />
          )}
        </Field>
        <footer>
          <Button onClick={close}>{t('Cancel')}</Button>
          <Button kind="primary" type="submit">
            {t('Use this key')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}
