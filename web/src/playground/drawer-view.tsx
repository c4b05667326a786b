/** The settings or tree of a conversation, beside it, or over it on a phone. */
import { t } from '../lib/i18n.ts'
import { Button, Field } from '../parts/basics.tsx'
import { TreeView } from '../parts/tree-view.tsx'
import { closeDrawer, type Drawer } from './drawer.ts'
import type { Exchange, Pane } from './pane.ts'
import { PresetBar } from './preset-bar.tsx'
import { SettingsView } from './settings-view.tsx'

export function DrawerView({ pane, part }: Drawer) {
  const title = part === 'settings' ? t('Settings') : t('Tree of the conversation')
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape') closeDrawer()
  }
  return (
    <aside class="drawer" aria-label={title} onKeyDown={onKeyDown}>
      <header>
        <h2>{title}</h2>
        {pane.choice.value !== null && <code>{pane.choice.value.id}</code>}
        <Button icon="close" kind="quiet" label={t('Close')} onClick={closeDrawer} />
      </header>
      {part === 'settings' ? <PaneSettings pane={pane} /> : <PaneTree pane={pane} />}
    </aside>
  )
}

function PaneSettings({ pane }: { readonly pane: Pane }) {
  return (
    <div class="drawer-body">
      <PresetBar settings={pane.settings} />
      <Field label={t('System prompt')}>
        {(ids) => (
          <textarea
            {...ids}
            rows={3}
            placeholder={t('Who the model is, and how it answers')}
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
    <div class="drawer-body">
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
