/** Raw completion: the model continues a text. The prompt is sent unchanged, without a template. */
import { signal } from '@preact/signals'
import { useEffect, useState } from 'preact/hooks'
import { streamCompletion } from '../lib/chat.ts'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { DEFAULTS } from '../lib/wire.ts'
import { Button, CopyButton, ErrorNote } from '../parts/basics.tsx'
import { useFollowedEnd } from '../parts/followed-end.ts'
import { type Answer, NO_ANSWER, receive } from './answer.ts'
import { Figures } from './exchange-view.tsx'
import { PresetBar } from './preset-bar.tsx'
import { SettingsView } from './settings-view.tsx'
import { PersonaSelect, TargetSelect } from './target-select.tsx'
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
  const [isSetting, setSetting] = useState(false)
  const end = useFollowedEnd()
  const { value: now } = answer
  // The view follows the growing text; the result stays beside the button that started it.
  useEffect(() => end.update(), [now])
  const submit = (event: Event) => {
    event.preventDefault()
    if (choice === null) return
    end.return()
    void complete(choice)
  }
  return (
    <form class="completion" onSubmit={submit}>
      <div class="completion-main">
        <div class="pane-head">
          <TargetSelect choice={choice} onChange={onChoice} />
          <PersonaSelect choice={choice} onChange={onChoice} />
          <span class="spring" />
          <Button
            icon="tokens"
            kind="quiet"
            label={t('Show tokens and probabilities')}
            isPressed={withTokens.value}
            onClick={() => {
              withTokens.value = !withTokens.value
            }}
          />
          <Button
            icon="sliders"
            kind="quiet"
            label={t('Settings')}
            isPressed={isSetting}
            onClick={() => setSetting(!isSetting)}
          />
          <RunButton isDisabled={choice === null} />
        </div>
        {now !== null && <Outcome answer={now} />}
        {/* A region that scrolls must be reachable by keyboard. */}
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
        <div ref={end.attach} class="completion-body" tabIndex={0} onScroll={end.onScroll}>
          <textarea
            class="prompt"
            aria-label={t('Prompt')}
            placeholder={t('A text for the model to continue')}
            rows={8}
            value={prompt.value}
            onInput={({ currentTarget }) => {
              prompt.value = currentTarget.value
            }}
          />
          {now !== null && <Result answer={now} />}
        </div>
      </div>
      {isSetting && (
        <aside class="drawer" aria-label={t('Settings')}>
          <header>
            <h2>{t('Settings')}</h2>
            <span class="spring" />
            <Button icon="close" kind="quiet" label={t('Close')} onClick={() => setSetting(false)} />
          </header>
          <div class="drawer-body">
            <PresetBar settings={settings} />
            <SettingsView settings={settings} maxTokens="256" isChat={false} />
          </div>
        </aside>
      )}
    </form>
  )
}

function RunButton({ isDisabled }: { readonly isDisabled: boolean }) {
  if (isRunning()) {
    return (
      <Button icon="stop" onClick={() => abort.abort()}>
        {t('Stop')}
      </Button>
    )
  }
  return (
    <Button kind="primary" type="submit" isDisabled={isDisabled}>
      {t('Continue the text')}
    </Button>
  )
}

function isRunning(): boolean {
  const state = answer.value?.state
  return state === 'reading' || state === 'writing'
}

/** How it ended, visible however long the text is. */
function Outcome({ answer: now }: { readonly answer: Answer }) {
  if (isRunning()) return null
  const append = () => {
    prompt.value += now.text
    answer.value = null
  }
  return (
    <div class="completion-outcome">
      {now.error !== null && <ErrorNote text={now.error} />}
      <div class="exchange-foot">
        <Figures answer={now} />
        <span class="actions">
          <CopyButton text={() => now.text} />
          <Button icon="down" kind="quiet" onClick={append}>
            {t('Append to the prompt')}
          </Button>
        </span>
      </div>
    </div>
  )
}

function Result({ answer: now }: { readonly answer: Answer }) {
  return (
    <div class="answer" aria-live="polite" aria-busy={isRunning()}>
      {now.tokens.length > 0 && !isRunning() ? (
        <Tokens tokens={now.tokens} />
      ) : (
        <p class={now.state === 'writing' ? 'text writing' : 'text'}>{now.text}</p>
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
