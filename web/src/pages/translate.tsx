/** Translate: a text in, its paragraphs side by side with their translations as they come. */
import { signal } from '@preact/signals'
import type { Target } from '../lib/chat.ts'
import { messageOf } from '../lib/errors.ts'
import { language, t } from '../lib/i18n.ts'
import { paragraphsOf } from '../lib/paragraphs.ts'
import { type Translation, translate } from '../lib/translation.ts'
import { Button, CopyButton, Empty, ErrorNote } from '../parts/basics.tsx'
import { TargetSelect } from '../playground/target-select.tsx'
import { allChoices, type Choice, targetOf } from '../playground/targets.ts'

const LANGUAGES = ['zh-CN', 'en', 'ja', 'ko', 'fr', 'de', 'es', 'pt', 'it', 'nl', 'ru', 'ar', 'vi']
const AUTO = 'auto'

interface Job {
  readonly paragraphs: readonly string[]
  readonly translations: readonly (Translation | null)[]
  readonly isRunning: boolean
  readonly error: string | null
  readonly seconds: number | null
}

const text = signal('')
const source = signal(AUTO)
const target = signal<string | null>(null)
const choice = signal<Choice | null>(null)
const job = signal<Job | null>(null)
let abort = new AbortController()

function chosenTarget(): string {
  return target.value ?? (language.value === 'zh' ? 'en' : 'zh-CN')
}

function chosenModel(): Choice | null {
  const all = allChoices()
  return all.find(({ id }) => id === choice.value?.id) ?? all[0] ?? null
}

export function TranslatePage() {
  const isRunning = job.value?.isRunning === true
  const submit = (event: Event) => {
    event.preventDefault()
    const model = chosenModel()
    if (model !== null) void run(targetOf(model))
  }
  return (
    <>
      <div class="page-head">
        <h1>{t('Translate')}</h1>
      </div>
      <form class="translate" onSubmit={submit}>
        <div class="row">
          <TargetSelect
            choice={chosenModel()}
            onChange={(next) => {
              choice.value = next
            }}
          />
          <LanguageSelect
            label={t('From')}
            value={source.value}
            hasAuto
            onChange={(value) => {
              source.value = value
            }}
          />
          <LanguageSelect
            label={t('Into')}
            value={chosenTarget()}
            onChange={(value) => {
              target.value = value
            }}
          />
          {isRunning ? (
            <Button icon="stop" onClick={() => abort.abort()}>
              {t('Stop')}
            </Button>
          ) : (
            <Button
              icon="translate"
              kind="primary"
              type="submit"
              isDisabled={text.value.trim() === '' || chosenModel() === null}
            >
              {t('Translate')}
            </Button>
          )}
        </div>
        <textarea
          aria-label={t('Text')}
          placeholder={t('Paste a text; its paragraphs are translated as one batch')}
          rows={7}
          value={text.value}
          onInput={({ currentTarget }) => {
            text.value = currentTarget.value
          }}
        />
      </form>
      {job.value === null ? <Empty title={t('No translation yet')} /> : <Result job={job.value} />}
    </>
  )
}

interface LanguageSelectProps {
  readonly label: string
  readonly value: string
  readonly hasAuto?: boolean
  readonly onChange: (value: string) => void
}

function LanguageSelect({ label, value, hasAuto = false, onChange }: LanguageSelectProps) {
  const names = new Intl.DisplayNames([language.value], { type: 'language' })
  return (
    <label class="inline">
      {label}
      <select value={value} onChange={({ currentTarget }) => onChange(currentTarget.value)}>
        {hasAuto && <option value={AUTO}>{t('as the text shows')}</option>}
        {LANGUAGES.map((code) => (
          <option key={code} value={code}>
            {names.of(code)}
          </option>
        ))}
      </select>
    </label>
  )
}

function Result({ job: now }: { readonly job: Job }) {
  const { paragraphs, translations, isRunning, error, seconds } = now
  const done = translations.filter((one) => one !== null).length
  const whole = () => translations.map((one) => one?.text ?? '').join('\n\n')
  return (
    <section class="translation" aria-label={t('Translation')}>
      <div class="progress">
        <progress value={done} max={paragraphs.length} aria-label={t('Progress')} />
        <small role="status">
          {t('{done} of {n} paragraphs', { done, n: paragraphs.length })}
          {seconds !== null && ` · ${seconds.toFixed(1)} s`}
        </small>
        <CopyButton text={whole} label={t('Copy all')} />
      </div>
      {error !== null && <ErrorNote text={error} />}
      <ol>
        {paragraphs.map((paragraph, i) => (
          // Paragraphs of a job never move.
          <li key={i}>
            <p>{paragraph}</p>
            <Translated translation={translations[i] ?? null} isRunning={isRunning} />
          </li>
        ))}
      </ol>
    </section>
  )
}

interface TranslatedProps {
  readonly translation: Translation | null
  readonly isRunning: boolean
}

function Translated({ translation, isRunning }: TranslatedProps) {
  if (translation === null) {
    return isRunning ? <p class="pending">{t('in the batch')}</p> : <p class="muted">–</p>
  }
  const { text: translated, error, finish_reason, detected_source_lang } = translation
  if (finish_reason === 'error') return <ErrorNote text={error ?? t('It failed')} />
  return (
    <p>
      {translated}
      <small class="muted">
        {source.value === AUTO && ` ${detected_source_lang}`}
        {finish_reason === 'length' && ` · ${t('cut off')}`}
      </small>
    </p>
  )
}

async function run(by: Target): Promise<void> {
  abort = new AbortController()
  const { signal: stop } = abort
  const paragraphs = paragraphsOf(text.value)
  const began = performance.now()
  const change = (values: Partial<Job>) => {
    job.value = { ...job.value!, ...values }
  }
  const translations: (Translation | null)[] = paragraphs.map(() => null)
  job.value = { paragraphs, translations, isRunning: true, error: null, seconds: null }
  try {
    await translate(paragraphs, {
      by,
      source: source.value,
      target: chosenTarget(),
      signal: stop,
      onResult: (index, translation) => {
        translations[index] = translation
        change({ translations: [...translations] })
      },
    })
  } catch (thrown) {
    // The other calls would go on for nobody.
    abort.abort()
    change({ error: stop.aborted && isAbort(thrown) ? null : messageOf(thrown) })
  }
  change({ isRunning: false, seconds: (performance.now() - began) / 1000 })
}

function isAbort(thrown: unknown): boolean {
  return thrown instanceof DOMException && thrown.name === 'AbortError'
}
