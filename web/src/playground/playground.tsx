/** Chat: the list of conversations, one or two of them side by side with one input box; or a raw completion. */
import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { ConversationList } from '../conversations/list-view.tsx'
import { t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { route, SHARED, standAt } from '../lib/router.ts'
import { Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { loadMarkdown } from '../parts/rich-text.tsx'
import { CompletionView } from './completion-view.tsx'
import { Composer } from './composer.tsx'
import { closeDrawer, drawer } from './drawer.ts'
import { DrawerView } from './drawer-view.tsx'
import { PaneView } from './pane-view.tsx'
import { close, compare, open, opening, openLink, panes, showBeside } from './panes.ts'
import { allChoices, type Choice } from './targets.ts'

const mode = signal<'chat' | 'completion'>('chat')
/** The list of conversations; on a narrow page it covers the conversation. */
const isListOpen = signal(matchMedia('(min-width: 1101px)').matches)

export function PlaygroundPage() {
  useEffect(() => void loadMarkdown(), [])
  const { argument, rest } = route.value
  useEffect(() => followAddress(), [argument, rest.join('/'), models.value === null])
  return (
    <>
      <div class="page-head">
        <Button
          icon="panel"
          kind="quiet"
          label={t('Conversations')}
          isPressed={isListOpen.value}
          onClick={() => {
            isListOpen.value = !isListOpen.value
          }}
        />
        <h1>{t('Chat')}</h1>
        <fieldset class="switch" aria-label={t('Mode')}>
          <ModeButton name="chat" label={t('Chat')} />
          <ModeButton name="completion" label={t('Completion')} />
        </fieldset>
        {mode.value === 'chat' && (
          <Button
            icon="compare"
            isPressed={panes.value.length > 1}
            onClick={() => (panes.value.length > 1 ? close(panes.value[1]!) : compare())}
          >
            {t('Compare')}
          </Button>
        )}
      </div>
      {mode.value === 'chat' ? <Chat /> : <Completion />}
    </>
  )
}

/** "#/playground/wkr-…" talks to that worker, "#/playground/MODEL/SESSION" goes on with that session, "…/TURN" with a copy, "…/MODEL/shared:TOKEN" with somebody's. */
function followAddress(): void {
  const { argument, rest } = route.value
  if (argument === null) return
  const [id, turn] = rest
  if (id !== undefined) {
    if (models.value === null) return
    mode.value = 'chat'
    if (id.startsWith(SHARED)) {
      openLink(argument, id.slice(SHARED.length))
      return
    }
    const copied = turn === undefined ? null : Number(turn)
    open(argument, id, Number.isInteger(copied) ? copied : null)
    return
  }
  const wanted = allChoices().find(({ worker }) => worker !== null && worker === argument)
  const pane = panes.value[0]!
  if (wanted !== undefined && pane.choice.value?.id !== wanted.id) pane.choice.value = wanted
  // If it stayed in the address, it would undo every later choice.
  if (wanted !== undefined) standAt('playground')
}

function ModeButton({ name, label }: { name: typeof mode.value; label: string }) {
  return (
    <Button
      isPressed={mode.value === name}
      onClick={() => {
        mode.value = name
      }}
    >
      {label}
    </Button>
  )
}

function Chat() {
  const all = panes.value
  const { value: opened } = drawer
  const isShown = opened !== null && all.includes(opened.pane)
  useEffect(() => {
    if (opened !== null && !isShown) closeDrawer()
  }, [isShown])
  const closeList = () => {
    if (!matchMedia('(min-width: 1101px)').matches) isListOpen.value = false
  }
  return (
    <div class="chat">
      {isListOpen.value && (
        <>
          {/* What is beside the list on a narrow page; the list has a button for the same. */}
          <div class="beside-list only-narrow" aria-hidden="true" onClick={closeList} />
          <ConversationList onChoose={closeList} />
        </>
      )}
      <div class="chat-main">
        <Panes />
        <Composer />
      </div>
      {isShown && <DrawerView {...opened} />}
    </div>
  )
}

function Panes() {
  const all = panes.value
  const { value: now } = opening
  if (now.state === 'loading') return <Loading />
  if (now.state === 'failed') {
    return (
      <Empty title={t('This conversation cannot be opened')}>
        <ErrorNote text={now.error} onRetry={now.retry} />
      </Empty>
    )
  }
  return (
    <div class={`panes panes-${all.length}`}>
      {all.map((pane, i) => (
        <PaneView
          // A conversation keeps its place.
          key={i === 0 ? 'first' : `second-${i}`}
          pane={pane}
          onFork={showBeside}
          {...(all.length > 1 ? { onClose: () => close(pane) } : {})}
        />
      ))}
    </div>
  )
}

function Completion() {
  const pane = panes.value[0]!
  const choose = (choice: Choice) => {
    pane.choice.value = choice
  }
  return <CompletionView choice={pane.choice.value} onChoice={choose} />
}
