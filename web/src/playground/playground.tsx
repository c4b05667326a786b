/** Playground: one conversation, or two side by side with one box to write in; or a raw completion. */
import { effect, signal } from '@preact/signals'
import { t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { hashOf, route } from '../lib/router.ts'
import { Button, Empty } from '../parts/basics.tsx'
import { CompletionView } from './completion-view.tsx'
import { Pane } from './pane.ts'
import { PaneView } from './pane-view.tsx'
import { isSendingKey } from './sending-key.ts'
import { allChoices, type Choice } from './targets.ts'

const MOST_PANES = 2

/** They outlive the page: a conversation is still there when its reader comes back. */
export const panes = signal<readonly Pane[]>([new Pane()])
const mode = signal<'chat' | 'completion'>('chat')
const draft = signal('')

/** Conversations without a model get the first one that can answer. */
effect(() => {
  const choices = allChoices()
  const first = choices.find(({ isReady }) => isReady) ?? choices[0]
  if (first === undefined) return
  for (const pane of panes.value) if (pane.choice.value === null) pane.choice.value = first
})

export function PlaygroundPage() {
  chooseByAddress()
  return (
    <>
      <div class="page-head">
        <h1>{t('Playground')}</h1>
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
      {models.value?.length === 0 && <NoModels />}
      {mode.value === 'chat' ? <Chat /> : <Completion />}
    </>
  )
}

/** "#/playground/wkr-…" talks to that worker. */
function chooseByAddress(): void {
  const { argument } = route.value
  const wanted = allChoices().find(({ worker }) => worker !== null && worker === argument)
  const pane = panes.value[0]!
  if (wanted === undefined) return
  if (pane.choice.value?.id !== wanted.id) pane.choice.value = wanted
  // Left in the address, it would undo every later choice.
  history.replaceState(null, '', hashOf('playground'))
  route.value = { page: 'playground', argument: null }
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

function NoModels() {
  return (
    <Empty title={t('No model is running')}>
      <a class="button primary" href={hashOf('workers', 'new')}>
        {t('Start a worker')}
      </a>
    </Empty>
  )
}

function compare(): void {
  const [first] = panes.value
  const second = new Pane()
  second.choice.value = first!.choice.value
  second.system.value = first!.system.value
  second.settings.value = first!.settings.value
  panes.value = [first!, second]
}

function close(pane: Pane): void {
  pane.stop()
  panes.value = panes.value.filter((other) => other !== pane)
}

function Chat() {
  const all = panes.value
  /** A fork is shown beside the original. */
  const showFork = (fork: Pane) => {
    for (const pane of all.slice(1)) pane.stop()
    panes.value = [...all.slice(0, MOST_PANES - 1), fork]
  }
  return (
    <div class="chat">
      <div class={`panes panes-${all.length}`}>
        {all.map((pane, i) => (
          <PaneView
            // A conversation keeps its place.
            key={pane === all[0] ? 'first' : `second-${i}`}
            pane={pane}
            onFork={showFork}
            {...(all.length > 1 ? { onClose: () => close(pane) } : {})}
          />
        ))}
      </div>
      <Composer />
    </div>
  )
}

function Composer() {
  const { value: text } = draft
  const setText = (value: string) => {
    draft.value = value
  }
  const all = panes.value
  const isBusy = all.some((pane) => pane.isBusy.value)
  const canSend = !isBusy && text.trim() !== '' && all.some(({ choice }) => choice.value !== null)
  const send = () => {
    if (!canSend) return
    for (const pane of all) void pane.send(text.trim())
    setText('')
  }
  const submit = (event: Event) => {
    event.preventDefault()
    send()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isSendingKey(event)) return
    event.preventDefault()
    send()
  }
  return (
    <form class="composer" onSubmit={submit}>
      <textarea
        aria-label={t('Message')}
        placeholder={t('Message; Enter sends, Shift+Enter begins a line')}
        rows={2}
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {isBusy ? (
        <Button icon="stop" label={t('Stop')} onClick={() => all.map((pane) => pane.stop())} />
      ) : (
        <Button icon="send" kind="primary" label={t('Send')} type="submit" isDisabled={!canSend} />
      )}
    </form>
  )
}

function Completion() {
  const pane = panes.value[0]!
  const choose = (choice: Choice) => {
    pane.choice.value = choice
  }
  return <CompletionView choice={pane.choice.value} onChoice={choose} />
}
