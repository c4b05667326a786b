/** The paragraphs of a translation, beside their originals or as a grid of cells. */
import { signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { Button, CopyButton, ErrorNote } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'
import type { Job, Row } from './job.ts'

type View = 'list' | 'grid'

/** Null: the choice follows the number of paragraphs. */
const chosen = signal<View | null>(null)
/** From this many paragraphs the grid is the default, so that all are visible while they fill. */
const MANY = 24

interface ResultViewProps {
  readonly job: Job
  /** Names the languages of each paragraph. */
  readonly isAuto: boolean
}

export function ResultView({ job, isAuto }: ResultViewProps) {
  const [shown, setShown] = useState<number | null>(null)
  const { rows, done, isRunning, error, seconds } = job
  const view = chosen.value ?? (rows.length >= MANY ? 'grid' : 'list')
  const whole = () => rows.map(({ text }) => text.value).join('\n\n')
  const row = shown === null ? undefined : rows[shown]
  return (
    <section class="translation" aria-label={t('Translation')}>
      <div class="progress">
        <progress value={done.value} max={rows.length} aria-label={t('Progress')} />
        <small role="status">
          {t('{done} of {n} paragraphs', { done: done.value, n: rows.length })}
          {seconds !== null && ` · ${seconds.toFixed(1)} s`}
        </small>
        <fieldset class="switch" aria-label={t('View')}>
          <ViewButton name="list" now={view} label={t('List')} />
          <ViewButton name="grid" now={view} label={t('Grid')} />
        </fieldset>
        <CopyButton text={whole} label={t('Copy all')} />
      </div>
      {error !== null && <ErrorNote text={error} />}
      {view === 'list' ? (
        <ol class="side-by-side">
          {rows.map((one, i) => (
            // Paragraphs of a job never move.
            <li key={i}>
              <p>{one.original}</p>
              <Translated row={one} isRunning={isRunning} isAuto={isAuto} />
            </li>
          ))}
        </ol>
      ) : (
        <ol class={isRunning ? 'cells pairs running' : 'cells pairs'}>
          {rows.map(({ original, text, result }, i) => (
            <li key={i} class={result.value?.finish_reason === 'error' ? 'wrong' : ''}>
              <button type="button" aria-label={t('Paragraph {n}', { n: i + 1 })} onClick={() => setShown(i)}>
                <span>
                  <small>{original}</small>
                  <span>{text}</span>
                </span>
              </button>
            </li>
          ))}
        </ol>
      )}
      {row !== undefined && (
        <Dialog title={t('Paragraph {n}', { n: shown! + 1 })} onClose={() => setShown(null)}>
          <p class="row-text muted">{row.original}</p>
          <div class="row-text">
            <Translated row={row} isRunning={isRunning} isAuto={isAuto} />
          </div>
          <footer>
            <CopyButton text={() => row.text.value} label={t('Copy')} />
            <Button kind="primary" onClick={() => setShown(null)}>
              {t('Done')}
            </Button>
          </footer>
        </Dialog>
      )}
    </section>
  )
}

interface ViewButtonProps {
  readonly name: View
  readonly now: View
  readonly label: string
}

function ViewButton({ name, now, label }: ViewButtonProps) {
  return (
    <Button
      isPressed={name === now}
      onClick={() => {
        chosen.value = name
      }}
    >
      {label}
    </Button>
  )
}

interface TranslatedProps {
  readonly row: Row
  readonly isRunning: boolean
  readonly isAuto: boolean
}

function Translated({ row: { text, result }, isRunning, isAuto }: TranslatedProps) {
  const { value: translation } = result
  if (translation === null) {
    if (text.value !== '') return <p>{text}</p>
    return isRunning ? <p class="pending">{t('in the batch')}</p> : <p class="muted">–</p>
  }
  const { error, finish_reason, detected_source_lang } = translation
  if (finish_reason === 'error') return <ErrorNote text={error ?? t('It failed')} />
  return (
    <p>
      {text}
      <small class="muted">
        {isAuto && ` ${detected_source_lang}`}
        {finish_reason === 'length' && ` · ${t('cut off')}`}
      </small>
    </p>
  )
}
