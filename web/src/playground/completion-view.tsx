/** Raw completion: a text that the model goes on with, in place. The prompt is sent as it stands, without a template. */
import { signal } from '@preact/signals'
import { streamCompletion } from '../lib/chat.ts'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { DEFAULTS } from '../lib/wire.ts'
import { Button, CopyButton, ErrorNote } from '../parts/basics.tsx'
import { type Answer, NO_ANSWER, receive } from './answer.ts'
import { Figures } from './exchange-view.tsx'
import { SettingsView } from './settings-view.tsx'
import { TargetSelect } from './target-select.tsx'
import { type Choice, targetOf } from './targets.ts'
import { Tokens } from './tokens.tsx'

const prompt = signal('')
const answer = signal<Answer | null>(null)
const settings = signal(DEFAULTS)
const withTokens = signal(false)
let abort = new AbortController()

interface CompletionViewProps {
  readonly choice: Choice | null
  readonly onChoice: (choice: Choice) => void
}

export function CompletionView({ choice, onChoice }: CompletionViewProps) {
  const isBusy = isRunning()
  const submit = (event: Event) => {
    event.preventDefault()
    if (choice !== null) void complete(choice)
  }
  return (
    <form class="completion" onSubmit={submit}>
      <div class="pane-head">
        <TargetSelect choice={choice} onChange={onChoice} />
        <Button
          icon="tokens"
          kind="quiet"
          label={t('Show tokens and probabilities')}
          isPressed={withTokens.value}
          onClick={() => {
            withTokens.value = !withTokens.value
          }}
        />
        {isBusy ? (
          <Button icon="stop" onClick={() => abort.abort()}>
            {t('Stop')}
          </Button>
        ) : (
          <Button kind="primary" type="submit" isDisabled={choice === null}>
            {t('Continue the text')}
          </Button>
        )}
      </div>
      <textarea
        class="prompt"
        aria-label={t('Prompt')}
        placeholder={t('A text for the model to go on with')}
        rows={8}
        value={prompt.value}
        onInput={({ currentTarget }) => {
          prompt.value = currentTarget.value
        }}
      />
      {answer.value !== null && <Result answer={answer.value} />}
      <SettingsView settings={settings} maxTokens="256" isChat={false} />
    </form>
  )
}

function isRunning(): boolean {
  const state = answer.value?.state
  return state === 'reading' || state === 'writing'
}

function Result({ answer: now }: { readonly answer: Answer }) {
  const append = () => {
    prompt.value += now.text
    answer.value = null
  }
  return (
    <div class="answer" aria-live="polite" aria-busy={isRunning()}>
      {now.tokens.length > 0 && !isRunning() ? (
        <Tokens tokens={now.tokens} />
      ) : (
        <p class={now.state === 'writing' ? 'text writing' : 'text'}>{now.text}</p>
      )}
      {now.error !== null && <ErrorNote text={now.error} />}
      {!isRunning() && (
        <div class="exchange-foot">
          <Figures answer={now} />
          <span class="actions">
            <CopyButton text={() => now.text} />
            <Button icon="down" kind="quiet" onClick={append}>
              {t('Append to the prompt')}
            </Button>
          </span>
        </div>
      )}
    </div>
  )
}

async function complete(choice: Choice): Promise<void> {
  if (isRunning()) return
  abort = new AbortController()
  const { signal: stop } = abort
  const show = (value: Answer) => {
    answer.value = value
  }
  const begun = { ...NO_ANSWER, times: { sent: performance.now(), first: null, last: null } }
  show(begun)
  const end = (change: Partial<Answer>) => show({ ...(answer.value ?? begun), ...change })
  const asked = { ...settings.value, alternatives: withTokens.value ? 5 : 0 }
  try {
    await receive(streamCompletion(targetOf(choice), prompt.value, asked, stop), begun, show)
    end({ state: 'done' })
  } catch (thrown) {
    const error = stop.aborted ? null : messageOf(thrown)
    end({ state: stop.aborted ? 'stopped' : 'failed', error })
  }
}
