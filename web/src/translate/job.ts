/** A translation job: the paragraphs of a text, each with its translation so far. */
import { batch as atOnce, type Signal, signal } from '@preact/signals'
import type { Target } from '../lib/chat.ts'
import { messageOf } from '../lib/errors.ts'
import { paragraphsOf } from '../lib/paragraphs.ts'
import { type Translation, translate } from '../lib/translation.ts'

/** One signal per paragraph, so only its cell renders again. */
export interface Row {
  readonly original: string
  readonly text: Signal<string>
  readonly result: Signal<Translation | null>
}

export interface Job {
  readonly rows: readonly Row[]
  /** Finished paragraphs. */
  readonly done: Signal<number>
  readonly isRunning: boolean
  readonly error: string | null
  readonly seconds: number | null
}

export const job = signal<Job | null>(null)
let abort = new AbortController()

export function stopJob(): void {
  abort.abort()
}

interface Languages {
  readonly source: string
  readonly target: string
}

/** Milliseconds between two updates of a cell; hundreds are written at once. */
const DRAW_EVERY_MS = 60

export async function runJob(text: string, by: Target, languages: Languages): Promise<void> {
  abort = new AbortController()
  const paragraphs = paragraphsOf(text)
  const rows = paragraphs.map((original): Row => {
    return { original, text: signal(''), result: signal<Translation | null>(null) }
  })
  const done = signal(0)
  const began = performance.now()
  const pending = new Map<number, string>()
  let numDone = 0
  const draw = () => {
    atOnce(() => {
      for (const [index, written] of pending) rows[index]!.text.value = written
      done.value = numDone
    })
    pending.clear()
  }
  const now: Job = { rows, done, isRunning: true, error: null, seconds: null }
  job.value = now
  const timer = setInterval(draw, DRAW_EVERY_MS)
  let error: string | null = null
  try {
    await translate(paragraphs, {
      by,
      ...languages,
      signal: abort.signal,
      onText: (index, written, isDone) => {
        pending.set(index, written)
        if (isDone) numDone++
      },
      onResult: (index, result) => {
        pending.set(index, result.text)
        rows[index]!.result.value = result
      },
    })
    numDone = rows.length
  } catch (thrown) {
    if (!abort.signal.aborted) error = messageOf(thrown)
  } finally {
    clearInterval(timer)
    draw()
  }
  job.value = { ...now, isRunning: false, error, seconds: (performance.now() - began) / 1000 }
}
