/** One exchange of a conversation: the question, the growing answer, its figures and its actions. */
import { useState } from 'preact/hooks'
import { key } from '../lib/api.ts'
import { count, milliseconds } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { hashOf, SHARED } from '../lib/router.ts'
import { answerFigures } from '../lib/stats.ts'
import { childrenOf, newestLeaf } from '../lib/tree.ts'
import { type Split, splitThought } from '../lib/wire.ts'
import { Button, CopyButton, ErrorNote } from '../parts/basics.tsx'
import { RichText } from '../parts/rich-text.tsx'
import type { Answer } from './answer.ts'
import type { Exchange, Pane } from './pane.ts'
import { isSendingKey } from './sending-key.ts'
import { Tokens } from './tokens.tsx'
import { indented, ResultsForm, ResultsView, ToolCallView } from './tool-calls.tsx'

interface ExchangeViewProps {
  readonly pane: Pane
  readonly exchange: Exchange
  readonly onFork: (exchange: Exchange) => void
}

export function ExchangeView({ pane, exchange, onFork }: ExchangeViewProps) {
  const answer = exchange.answer.value
  const isLast = exchange.id === pane.head.value
  const isRunning = answer.state === 'reading' || answer.state === 'writing'
  return (
    <article class="exchange">
      {exchange.results === null ? (
        <Question pane={pane} exchange={exchange} />
      ) : (
        <ResultsView results={exchange.results} calls={pane.callsBefore(exchange)} />
      )}
      <AnswerView answer={answer} isElsewhere={exchange.question === null} />
      {isLast && answer.state === 'done' && answer.toolCalls.length > 0 && (
        <ResultsForm
          calls={answer.toolCalls}
          isDisabled={pane.isBusy.value}
          onSend={(results) => void pane.sendResults(results)}
        />
      )}
      {!isRunning && (
        <div class="exchange-foot">
          <Figures answer={answer} />
          <span class="actions">
            <CopyButton text={() => splitThought(answer.text).answer} />
            <Button
              icon="again"
              kind="quiet"
              label={t('Answer again')}
              isDisabled={pane.isBusy.value || exchange.question === null}
              onClick={() => void pane.again(exchange)}
            />
            <Button icon="fork" kind="quiet" label={t('Fork here')} onClick={() => onFork(exchange)} />
            <ShareButton pane={pane} exchange={exchange} />
            {!isLast && (
              <Button
                icon="back"
                kind="quiet"
                label={t('Rewind to here')}
                isDisabled={pane.isBusy.value}
                onClick={() => void pane.rewind(exchange)}
              />
            )}
          </span>
        </div>
      )}
    </article>
  )
}

/** A link to a copy of the conversation up to here, for anyone who may use this server. */
function ShareButton({ pane, exchange }: { readonly pane: Pane; readonly exchange: Exchange }) {
  const { turn } = exchange.answer.value
  const { model, sessionId } = pane
  if (turn === null || model === null || sessionId === null) return null
  const addressOf = (...parts: readonly (string | number)[]) =>
    `${location.origin}${location.pathname}${hashOf('playground', model, ...parts)}`
  // Without keys everybody can open this session anyway.
  if (key.value === '') {
    const link = () => addressOf(sessionId, turn)
    return <CopyButton icon="link" text={link} title={t('Copy a link to this conversation up to here')} />
  }
  const shared = async () => {
    const token = await pane.share(turn)
    return token === null ? null : addressOf(`${SHARED}${token}`)
  }
  const title = t(
    'Copy a link to this conversation up to here; anyone with a key of this server can open a copy for a week',
  )
  return <CopyButton icon="link" text={shared} title={title} />
}

function Question({ pane, exchange }: { readonly pane: Pane; readonly exchange: Exchange }) {
  const [draft, setDraft] = useState<string | null>(null)
  if (exchange.question === null) {
    const { turn, text } = exchange.answer.value
    return (
      <p class="elsewhere">
        {text === ''
          ? t('Turn {n}: its words are not shown here, its state is kept.', { n: turn ?? 0 })
          : t('Turn {n}: a raw text', { n: turn ?? 0 })}
      </p>
    )
  }
  if (draft === null) {
    return (
      <div class="question">
        <p>{exchange.question}</p>
        <span class="actions">
          <Siblings pane={pane} exchange={exchange} />
          <Button
            icon="edit"
            kind="quiet"
            label={t('Edit')}
            isDisabled={pane.isBusy.value}
            onClick={() => setDraft(exchange.question)}
          />
        </span>
      </div>
    )
  }
  // The draft waits for the running answer.
  const canSend = !pane.isBusy.value && draft.trim() !== ''
  const send = () => {
    if (!canSend) return
    setDraft(null)
    void pane.edit(exchange, draft.trim())
  }
  return <Editing draft={draft} canSend={canSend} onInput={setDraft} onSend={send} onCancel={() => setDraft(null)} />
}

interface EditingProps {
  readonly draft: string
  readonly canSend: boolean
  readonly onInput: (text: string) => void
  readonly onSend: () => void
  readonly onCancel: () => void
}

/** The one who asked to edit wants to write. A constant function: a new one would take the focus at every render. */
const takeFocus = (element: HTMLElement | null) => element?.focus()

function Editing({ draft, canSend, onInput, onSend, onCancel }: EditingProps) {
  const submit = (event: Event) => {
    event.preventDefault()
    onSend()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (isSendingKey(event)) submit(event)
    else if (event.key === 'Escape' && !event.isComposing) onCancel()
  }
  return (
    <form class="question editing" onSubmit={submit}>
      <textarea
        aria-label={t('Edit')}
        value={draft}
        rows={3}
        ref={takeFocus}
        onInput={({ currentTarget }) => onInput(currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <footer>
        <Button onClick={onCancel}>{t('Cancel')}</Button>
        <Button kind="primary" type="submit" isDisabled={!canSend}>
          {t('Send as a new branch')}
        </Button>
      </footer>
    </form>
  )
}

/** ‹ 2/3 ›: switches between the branches that start here. */
function Siblings({ pane, exchange }: { readonly pane: Pane; readonly exchange: Exchange }) {
  const all = pane.exchanges.value
  const siblings = childrenOf(all, exchange.parent)
  if (siblings.length < 2) return null
  const at = siblings.findIndex(({ id }) => id === exchange.id)
  const go = (to: number) => {
    pane.head.value = newestLeaf(all, siblings[to]!.id)
  }
  return (
    <span class="siblings">
      <Button
        icon="left"
        kind="quiet"
        label={t('Previous branch')}
        isDisabled={at === 0 || pane.isBusy.value}
        onClick={() => go(at - 1)}
      />
      {at + 1}/{siblings.length}
      <Button
        icon="right"
        kind="quiet"
        label={t('Next branch')}
        isDisabled={at === siblings.length - 1 || pane.isBusy.value}
        onClick={() => go(at + 1)}
      />
    </span>
  )
}

interface AnswerViewProps {
  readonly answer: Answer
  readonly isElsewhere: boolean
}

function AnswerView({ answer, isElsewhere }: AnswerViewProps) {
  const { state, error, tokens, toolCalls } = answer
  const split = thoughtOf(answer)
  const isRunning = state === 'reading' || state === 'writing'
  return (
    <div class="answer" aria-live="polite" aria-busy={isRunning}>
      {split.thought !== '' && <Thought {...split} />}
      {tokens.length > 0 && !isRunning ? (
        <Tokens tokens={tokens} />
      ) : (
        <div class={state === 'writing' ? 'prose writing' : 'prose'}>
          <RichText text={isRunning ? split.answer : readable(split.answer)} />
          {state === 'reading' && <span class="reading">{t('reading the prompt')}</span>}
        </div>
      )}
      {toolCalls.map((one) => (
        <ToolCallView key={one.index} call={one} />
      ))}
      {!isRunning && !isElsewhere && error === null && answer.text === '' && toolCalls.length === 0 && (
        <p class="muted">{t('An empty answer')}</p>
      )}
      {error !== null && <ErrorNote text={error} />}
    </div>
  )
}

/** The server splits off a requested thought; a thought that the model began by itself is in the text. */
function thoughtOf({ thought, text }: Answer): Split {
  if (thought === '') return splitThought(text)
  return { thought, isThinking: text === '', answer: text }
}

function Thought({ thought, isThinking }: Split) {
  return (
    <details class="thought" open={isThinking}>
      <summary>{isThinking ? t('Thinking') : t('Thought')}</summary>
      <p>{thought}</p>
    </details>
  )
}

/** Shows a JSON answer, which is one line, as code. */
function readable(answer: string): string {
  const json = /^\s*[[{]/.test(answer) ? indented(answer) : null
  return json === null ? answer : `\`\`\`json\n${json}\n\`\`\``
}

/** A stopped answer has no figures from the server. */
export function Figures({ answer }: { readonly answer: Answer }) {
  const { usage, times, state, finish } = answer
  const { ttftMs, tokensPerSecond } = answerFigures(times, usage?.completion ?? 0)
  const parts = [
    tokensPerSecond === null ? null : `${count(tokensPerSecond)} tok/s`,
    ttftMs === null ? null : `TTFT ${milliseconds(ttftMs)}`,
    usage === null ? null : t('{n} tokens', { n: usage.completion }),
    usage === null ? null : t('prompt {n}, {cached} cached', { n: usage.prompt, cached: usage.cached }),
    state === 'stopped' ? t('stopped') : finish === 'length' ? t('cut at max tokens') : null,
  ]
  return <small class="answer-figures">{parts.filter((part) => part !== null).join(' · ')}</small>
}
