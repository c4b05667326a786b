/** Translate: splits a text into paragraphs and streams their translations, all at once. */
import { signal } from '@preact/signals'
import { language, t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { Button, Empty, ErrorNote, NoModel } from '../parts/basics.tsx'
import { TextFilesButton } from '../parts/text-files.tsx'
import { readTextFile } from '../playground/attachment.ts'
import { TargetSelect } from '../playground/target-select.tsx'
import { type Choice, currentOf, targetOf } from '../playground/targets.ts'
import { job, runJob, stopJob } from './job.ts'
import { ResultView } from './result-view.tsx'

const LANGUAGES = ['zh-CN', 'en', 'ja', 'ko', 'fr', 'de', 'es', 'pt', 'it', 'nl', 'ru', 'ar', 'vi']
const AUTO = 'auto'

const text = signal('')
const source = signal(AUTO)
const target = signal<string | null>(null)
const choice = signal<Choice | null>(null)
/** Error for a file that could not be read. */
const fault = signal<string | null>(null)

function chosenTarget(): string {
  return target.value ?? (/\p{Script=Han}/u.test(text.value) ? 'en' : 'zh-CN')
}

export function TranslatePage() {
  const isRunning = job.value?.isRunning === true
  const submit = (event: Event) => {
    event.preventDefault()
    const model = currentOf(choice.value)
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
            choice={currentOf(choice.value)}
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
          <TextFilesButton onFiles={(files) => void take(files)} />
          {isRunning ? (
            <Button icon="stop" onClick={stopJob}>
              {t('Stop')}
            </Button>
          ) : (
            <Button
              icon="translate"
              kind="primary"
              type="submit"
              isDisabled={text.value.trim() === '' || currentOf(choice.value) === null}
            >
              {t('Translate')}
            </Button>
          )}
        </div>
        <textarea
          aria-label={t('Text')}
          placeholder={t('Paste a text, or drop files; its paragraphs are translated as one batch')}
          rows={7}
          value={text.value}
          onInput={({ currentTarget }) => {
            text.value = currentTarget.value
          }}
          onDragOver={(event) => event.preventDefault()}
          onDrop={(event) => {
            const files = [...(event.dataTransfer?.files ?? [])]
            if (files.length === 0) return
            event.preventDefault()
            void take(files)
          }}
        />
        {fault.value !== null && <ErrorNote text={fault.value} />}
      </form>
      {job.value !== null ? (
        <ResultView job={job.value} isAuto={source.value === AUTO} />
      ) : models.value?.length === 0 ? (
        <NoModel />
      ) : (
        <Empty title={t('No translation yet')} />
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
        {hasAuto && <option value={AUTO}>{t('detect')}</option>}
        {LANGUAGES.map((code) => (
          <option key={code} value={code}>
            {names.of(code)}
          </option>
        ))}
      </select>
    </label>
  )
}

/** Joins the files and replaces the text. */
async function take(files: readonly File[]): Promise<void> {
  fault.value = null
  const texts: string[] = []
  for (const file of files) {
    const read = await readTextFile(file)
    if ('error' in read) fault.value = t(read.error, { name: file.name })
    else texts.push(read.text.replace(/\n$/, ''))
  }
  if (texts.length > 0) text.value = texts.join('\n\n')
}
