/** Translate: a text in, its paragraphs with their translations as they are written, all at once. */
import { signal } from '@preact/signals'
import { useRef } from 'preact/hooks'
import { language, t } from '../lib/i18n.ts'
import { Button, Empty, ErrorNote } from '../parts/basics.tsx'
import { readTextFile } from '../playground/attachment.ts'
import { TargetSelect } from '../playground/target-select.tsx'
import { allChoices, type Choice, targetOf } from '../playground/targets.ts'
import { job, runJob, stopJob } from './job.ts'
import { ResultView } from './result-view.tsx'

const LANGUAGES = ['zh-CN', 'en', 'ja', 'ko', 'fr', 'de', 'es', 'pt', 'it', 'nl', 'ru', 'ar', 'vi']
const AUTO = 'auto'

const text = signal('')
const source = signal(AUTO)
const target = signal<string | null>(null)
const choice = signal<Choice | null>(null)
/** Of a file that was dropped. */
const fault = signal<string | null>(null)

function chosenTarget(): string {
  return target.value ?? (/\p{Script=Han}/u.test(text.value) ? 'en' : 'zh-CN')
}

function chosenModel(): Choice | null {
  const all = allChoices()
  return all.find(({ id }) => id === choice.value?.id) ?? all[0] ?? null
}

export function TranslatePage() {
  const picker = useRef<HTMLInputElement>(null)
  const isRunning = job.value?.isRunning === true
  const submit = (event: Event) => {
    event.preventDefault()
    const model = chosenModel()
    const languages = { source: source.value, target: chosenTarget() }
    if (model !== null) void runJob(text.value, targetOf(model), languages)
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
          <Button
            icon="clip"
            kind="quiet"
            label={t('Add text files')}
            onClick={() => picker.current?.click()}
          />
          <input
            ref={picker}
            type="file"
            hidden
            aria-label={t('Add text files')}
            onChange={({ currentTarget }) => {
              const file = currentTarget.files?.[0]
              if (file !== undefined) void take(file)
              currentTarget.value = ''
            }}
          />
          {isRunning ? (
            <Button icon="stop" onClick={stopJob}>
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
          placeholder={t(
            'Paste a text, or drop a file; its paragraphs are translated as one batch',
          )}
          rows={7}
          value={text.value}
          onInput={({ currentTarget }) => {
            text.value = currentTarget.value
          }}
          onDragOver={(event) => event.preventDefault()}
          onDrop={(event) => {
            const file = event.dataTransfer?.files[0]
            if (file === undefined) return
            event.preventDefault()
            void take(file)
          }}
        />
        {fault.value !== null && <ErrorNote text={fault.value} />}
      </form>
      {job.value === null ? (
        <Empty title={t('No translation yet')} />
      ) : (
        <ResultView job={job.value} isAuto={source.value === AUTO} />
      )}
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

async function take(file: File): Promise<void> {
  const read = await readTextFile(file)
  fault.value = 'error' in read ? t(read.error, { name: file.name }) : null
  if ('text' in read) text.value = read.text
}
