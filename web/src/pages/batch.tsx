/** Batch: continues one text many times, or many texts at once. Each row has a cell that fills as tokens arrive. */
import { batch as atOnce, type Signal, signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { type BatchFigures, streamBatch } from '../lib/batch.ts'
import type { Target } from '../lib/chat.ts'
import { messageOf } from '../lib/errors.ts'
import { count } from '../lib/format.ts'
import { language, t } from '../lib/i18n.ts'
import { models, samples } from '../lib/live.ts'
import { Button, CopyButton, Empty, ErrorNote, NoModel } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'
import { TargetSelect } from '../playground/target-select.tsx'
import { type Choice, currentOf, targetOf } from '../playground/targets.ts'

const SIZES = [8, 32, 128, 512]
/** Most rows per request, the server's limit. */
const MOST_ROWS = 512
const PROMPTS = { en: 'Once upon a time', zh: '从前' } as const

interface Run {
  readonly prompts: readonly string[]
  /** The text of each row so far. Each row has its own signal, so only its cell renders again. */
  readonly texts: readonly Signal<string>[]
  readonly isRunning: boolean
  readonly error: string | null
  readonly figures: BatchFigures | null
}

const prompt = signal<string | null>(null)
const size = signal(32)
const isByLine = signal(false)
const maxTokens = signal(64)
const choice = signal<Choice | null>(null)
const run = signal<Run | null>(null)
let abort = new AbortController()

function rows(): string[] {
  const text = prompt.value ?? PROMPTS[language.value]
  if (!isByLine.value) return Array.from({ length: size.value }, () => text)
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  return lines.slice(0, MOST_ROWS)
}

export function BatchPage() {
  const [shown, setShown] = useState<number | null>(null)
  const now = run.value
  const isRunning = now?.isRunning === true
  const submit = (event: Event) => {
    event.preventDefault()
    const model = currentOf(choice.value)
    if (model !== null && !isRunning) void start(targetOf(model))
  }
  return (
    <>
      <div class="page-head">
        <h1>{t('Batch')}</h1>
        <p class="lead">{t('Many texts are continued at once, as rows of one batch. Each cell is a row.')}</p>
      </div>
      <form class="batch" onSubmit={submit}>
        <textarea
          aria-label={t('Prompt')}
          rows={3}
          value={prompt.value ?? PROMPTS[language.value]}
          onInput={({ currentTarget }) => {
            prompt.value = currentTarget.value
          }}
        />
        <div class="row">
          <TargetSelect
            choice={currentOf(choice.value)}
            onChange={(next) => {
              choice.value = next
            }}
          />
          <label class="inline">
            {t('Rows')}
            <select
              value={size.value}
              disabled={isByLine.value}
              onChange={({ currentTarget }) => {
                size.value = Number(currentTarget.value)
              }}
            >
              {SIZES.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          <label class="inline">
            {t('Max tokens')}
            <input
              type="number"
              min={1}
              max={2000}
              value={maxTokens.value}
              onInput={({ currentTarget }) => {
                maxTokens.value = currentTarget.valueAsNumber
              }}
            />
          </label>
          <label class="inline">
            <input
              type="checkbox"
              checked={isByLine.value}
              onChange={({ currentTarget }) => {
                isByLine.value = currentTarget.checked
              }}
            />
            {t('a row for each line')}
          </label>
          {isRunning ? (
            <Button icon="stop" onClick={() => abort.abort()}>
              {t('Stop')}
            </Button>
          ) : (
            <Button
              icon="play"
              kind="primary"
              type="submit"
              isDisabled={rows().length === 0 || !(maxTokens.value >= 1) || currentOf(choice.value) === null}
            >
              {t('Start {n} rows', { n: rows().length })}
            </Button>
          )}
        </div>
      </form>
      {now !== null ? (
        <Grid run={now} onOpen={(row) => setShown(row)} />
      ) : models.value?.length === 0 ? (
        <NoModel />
      ) : (
        <Empty title={t('No batch yet')} />
      )}
      {now !== null && shown !== null && <RowDialog run={now} row={shown} onClose={() => setShown(null)} />}
    </>
  )
}

interface GridProps {
  readonly run: Run
  readonly onOpen: (row: number) => void
}

function Grid({ run: { texts, isRunning, error, figures }, onOpen }: GridProps) {
  const all = () => texts.map((text) => text.value).join('\n\n---\n\n')
  return (
    <section aria-label={t('Rows')}>
      <div class="progress">
        <small role="status">
          {isRunning ? t('writing {n} rows', { n: texts.length }) : null}
          {figures !== null &&
            t('{n} tokens in {s} s: {speed} tokens a second', {
              n: count(figures.completion_tokens),
              s: figures.elapsed_seconds.toFixed(1),
              speed: count(figures.tokens_per_second),
            })}
        </small>
        {isRunning && <Speed />}
        <CopyButton text={all} label={t('Copy all')} />
      </div>
      {error !== null && <ErrorNote text={error} />}
      <ol class={isRunning ? 'cells running' : 'cells'}>
        {texts.map((text, i) => (
          // Rows of a run never move.
          <li key={i}>
            <button type="button" aria-label={t('Row {n}', { n: i + 1 })} onClick={() => onOpen(i)}>
              <span>{text}</span>
            </button>
          </li>
        ))}
      </ol>
    </section>
  )
}

/** Figures of the whole server. Without role="status", since they change every second. */
function Speed() {
  const now = samples.value.at(-1)
  if (now === undefined) return null
  const rates = Object.values(now.workers).map((one) => one.generated_tokens_per_second)
  const speed = rates.reduce((sum, one) => sum + one, 0)
  return <small>{speed > 0 && `${count(speed)} tok/s`}</small>
}

interface RowDialogProps {
  readonly run: Run
  readonly row: number
  readonly onClose: () => void
}

function RowDialog({ run: { prompts, texts }, row, onClose }: RowDialogProps) {
  const text = texts[row]
  if (text === undefined) return null
  return (
    <Dialog title={t('Row {n}', { n: row + 1 })} onClose={onClose}>
      <p class="row-text">
        <b>{prompts[row]}</b>
        {text}
      </p>
      <footer>
        <CopyButton text={() => `${prompts[row]}${text.value}`} label={t('Copy')} />
        <Button kind="primary" onClick={onClose}>
          {t('Done')}
        </Button>
      </footer>
    </Dialog>
  )
}

/** Milliseconds between two updates of a cell; tokens of hundreds of rows come faster. */
const DRAW_EVERY_MS = 60

async function start(target: Target): Promise<void> {
  abort = new AbortController()
  const prompts = rows()
  const texts = prompts.map(() => signal(''))
  const change = (values: Partial<Run>) => {
    run.value = { ...run.value!, ...values }
  }
  run.value = { prompts, texts, isRunning: true, error: null, figures: null }
  const pending = new Map<number, string>()
  const draw = () => {
    atOnce(() => {
      for (const [row, text] of pending) texts[row]!.value += text
    })
    pending.clear()
  }
  const timer = setInterval(draw, DRAW_EVERY_MS)
  try {
    const figures = await streamBatch(target, prompts, {
      maxTokens: maxTokens.value,
      temperature: 1,
      signal: abort.signal,
      onText: (row, text) => pending.set(row, (pending.get(row) ?? '') + text),
    })
    change({ figures })
  } catch (thrown) {
    if (!abort.signal.aborted) change({ error: messageOf(thrown) })
  } finally {
    clearInterval(timer)
    draw()
  }
  change({ isRunning: false })
}
