/** One conversation: its header (model, settings) and its exchanges. */
import { useEffect } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { newestLeaf } from '../lib/tree.ts'
import { Button } from '../parts/basics.tsx'
import { useFollowedEnd } from '../parts/followed-end.ts'
import { drawer, toggleDrawer } from './drawer.ts'
import { ExchangeView } from './exchange-view.tsx'
import type { Exchange, Pane } from './pane.ts'
import { showNew } from './panes.ts'
import { Starters } from './starters.tsx'
import { PersonaSelect, TargetSelect } from './target-select.tsx'

/** The number of alternatives in the token view. */
const ALTERNATIVES = 5

interface PaneViewProps {
  readonly pane: Pane
  readonly onFork: (fork: Pane) => void
  /** Absent if it is the only conversation. */
  readonly onClose?: () => void
}

export function PaneView({ pane, onFork, onClose }: PaneViewProps) {
  const fork = (exchange: Exchange) => void pane.fork(exchange).then(onFork)
  const { value: opened } = drawer
  const isOpen = (part: 'settings' | 'tree') => opened?.pane === pane && opened.part === part
  const choose = (choice: NonNullable<Pane['choice']['value']>) => {
    pane.choice.value = choice
  }
  return (
    <section class="pane" aria-label={pane.choice.value?.id ?? t('Conversation')}>
      <div class="pane-head">
        <TargetSelect choice={pane.choice.value} onChange={choose} />
        <PersonaSelect choice={pane.choice.value} onChange={choose} />
        <span class="spring" />
        <TokenSwitch pane={pane} />
        <Button
          icon="sessions"
          kind="quiet"
          label={t('Tree of the conversation')}
          isPressed={isOpen('tree')}
          onClick={() => toggleDrawer(pane, 'tree')}
        >
          {t('Tree')}
        </Button>
        <Button
          icon="sliders"
          kind="quiet"
          label={t('Settings')}
          isPressed={isOpen('settings')}
          onClick={() => toggleDrawer(pane, 'settings')}
        >
          {t('Settings')}
        </Button>
        {onClose ? (
          <Button icon="close" kind="quiet" label={t('Close')} onClick={onClose} />
        ) : (
          <Button icon="plus" kind="quiet" label={t('New conversation')} onClick={showNew}>
            {t('New')}
          </Button>
        )}
      </div>
      {pane.notice.value !== null && (
        <div class="note" role="status">
          {pane.notice.value}
        </div>
      )}
      <Exchanges pane={pane} onFork={fork} />
    </section>
  )
}

function TokenSwitch({ pane }: { readonly pane: Pane }) {
  const { value: settings } = pane.settings
  const isOn = settings.alternatives > 0
  return (
    <Button
      icon="tokens"
      kind="quiet"
      label={t('Show tokens and probabilities')}
      isPressed={isOn}
      onClick={() => {
        pane.settings.value = { ...settings, alternatives: isOn ? 0 : ALTERNATIVES }
      }}
    >
      {t('Tokens')}
    </Button>
  )
}

interface ExchangesProps {
  readonly pane: Pane
  readonly onFork: (exchange: Exchange) => void
}

function Exchanges({ pane, onFork }: ExchangesProps) {
  const end = useFollowedEnd()
  const path = pane.path()
  // The list grows with each piece of the last answer.
  const last = path.at(-1)?.answer.value
  const isEmpty = path.length === 0
  useEffect(() => (isEmpty ? undefined : end.update()), [last, path.length])
  // A new question, or another conversation.
  useEffect(() => (isEmpty ? undefined : end.return()), [pane, pane.exchanges.value.length])
  const leaf = newestLeaf(pane.exchanges.value, pane.head.value)
  return (
    // A region that scrolls must be reachable by keyboard.
    // biome-ignore lint/a11y/noNoninteractiveTabindex: see above
    <div key={String(isEmpty)} ref={end.attach} class="exchanges" tabIndex={0} onScroll={end.onScroll}>
      {isEmpty && <Starters pane={pane} />}
      {path.map((exchange) => (
        <ExchangeView key={exchange.id} pane={pane} exchange={exchange} onFork={onFork} />
      ))}
      {leaf !== pane.head.value && !pane.isBusy.value && (
        <p class="rewound">
          {t('Rewound: the next message starts a new branch.')}{' '}
          <Button
            kind="quiet"
            onClick={() => {
              pane.head.value = leaf
            }}
          >
            {t('Forward again')}
          </Button>
        </p>
      )}
    </div>
  )
}
