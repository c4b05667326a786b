/** One conversation with its head (whom with, settings, tree) and its exchanges. */
import { useEffect, useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { newestLeaf } from '../lib/tree.ts'
import { Button, Empty, Field } from '../parts/basics.tsx'
import { useFollowedEnd } from '../parts/followed-end.ts'
import { TreeView } from '../parts/tree-view.tsx'
import { ExchangeView } from './exchange-view.tsx'
import type { Exchange, Pane } from './pane.ts'
import { SettingsView } from './settings-view.tsx'
import { TargetSelect } from './target-select.tsx'

/** How many other tokens the token view can show. */
const ALTERNATIVES = 5

interface PaneViewProps {
  readonly pane: Pane
  readonly onFork: (fork: Pane) => void
  /** Absent where it is the only one. */
  readonly onClose?: () => void
}

export function PaneView({ pane, onFork, onClose }: PaneViewProps) {
  const [open, setOpen] = useState<'settings' | 'tree' | null>(null)
  const toggle = (part: 'settings' | 'tree') => setOpen(open === part ? null : part)
  const fork = (exchange: Exchange) => void pane.fork(exchange).then(onFork)
  return (
    <section class="pane" aria-label={pane.choice.value?.id ?? t('Conversation')}>
      <div class="pane-head">
        <TargetSelect
          choice={pane.choice.value}
          onChange={(choice) => {
            pane.choice.value = choice
          }}
        />
        <TokenSwitch pane={pane} />
        <Button
          icon="sliders"
          kind="quiet"
          label={t('Settings')}
          isPressed={open === 'settings'}
          onClick={() => toggle('settings')}
        />
        <Button
          icon="sessions"
          kind="quiet"
          label={t('Tree of the conversation')}
          isPressed={open === 'tree'}
          onClick={() => toggle('tree')}
        />
        <Button
          icon="plus"
          kind="quiet"
          label={t('New conversation')}
          onClick={() => pane.reset()}
        />
        {onClose && <Button icon="close" kind="quiet" label={t('Close')} onClick={onClose} />}
      </div>
      {open === 'settings' && <PaneSettings pane={pane} />}
      {open === 'tree' && <PaneTree pane={pane} />}
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
    />
  )
}

function PaneSettings({ pane }: { readonly pane: Pane }) {
  return (
    <div class="pane-settings">
      <Field label={t('System prompt')}>
        {(ids) => (
          <textarea
            {...ids}
            rows={2}
            value={pane.system.value}
            onInput={({ currentTarget }) => {
              pane.system.value = currentTarget.value
            }}
          />
        )}
      </Field>
      <SettingsView settings={pane.settings} maxTokens="4096" isChat />
    </div>
  )
}

function PaneTree({ pane }: { readonly pane: Pane }) {
  const { value: nodes } = pane.exchanges
  const select = (node: Exchange) => {
    if (!pane.isBusy.value) void pane.rewind(node)
  }
  return (
    <div class="pane-tree">
      {nodes.length === 0 ? (
        <p class="muted">{t('The tree grows with the conversation.')}</p>
      ) : (
        <TreeView
          label={t('Tree of the conversation')}
          nodes={nodes}
          head={pane.head.value}
          onSelect={select}
          describe={({ question, answer }) => (
            <>
              <b>{question ?? t('Turn {n}', { n: answer.value.turn ?? 0 })}</b>
              <span>{answer.value.text}</span>
            </>
          )}
        />
      )}
      {pane.sessionId !== null && (
        <small class="muted">
          {t('Session')} <code>{pane.sessionId}</code>
        </small>
      )}
    </div>
  )
}

interface ExchangesProps {
  readonly pane: Pane
  readonly onFork: (exchange: Exchange) => void
}

function Exchanges({ pane, onFork }: ExchangesProps) {
  const end = useFollowedEnd()
  const path = pane.path()
  // Each piece of the last answer makes the list longer.
  const last = path.at(-1)?.answer.value
  useEffect(() => end.update(), [last, path.length])
  // A question was asked.
  useEffect(() => end.return(), [pane.exchanges.value.length])
  const leaf = newestLeaf(pane.exchanges.value, pane.head.value)
  return (
    <div ref={end.attach} class="exchanges" onScroll={end.onScroll}>
      {path.length === 0 && (
        <Empty title={t('Say something')}>
          <p>{t('Answers appear here as they are written.')}</p>
        </Empty>
      )}
      {path.map((exchange) => (
        <ExchangeView key={exchange.id} pane={pane} exchange={exchange} onFork={onFork} />
      ))}
      {leaf !== pane.head.value && !pane.isBusy.value && (
        <p class="rewound">
          {t('Rewound: the next message begins a new branch.')}{' '}
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
