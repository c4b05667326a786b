/** A text as paragraphs, and their translations as they come: few calls, so that they are rows of one batch. */
import { call } from './api.ts'
import type { Target } from './chat.ts'
import { groupsOf } from './paragraphs.ts'

/** Paragraphs of a call: progress is seen by calls, and several calls share a batch on the server. */
const CALL_SIZE = 16
/** Calls at once. Browsers open about six connections to a host, of which the event stream and a log may hold two. */
const CALLS_AT_ONCE = 3

export interface Translation {
  readonly detected_source_lang: string
  readonly text: string
  readonly finish_reason: string
  readonly error?: string
}

export interface TranslateOptions {
  readonly by: Target
  readonly source: string
  readonly target: string
  readonly signal: AbortSignal
  readonly onResult: (index: number, translation: Translation) => void
}

/** Rejects when a whole call fails; a paragraph that fails has its own error. */
export async function translate(
  paragraphs: readonly string[],
  options: TranslateOptions,
): Promise<void> {
  const groups = groupsOf(paragraphs, CALL_SIZE)
  const runNext = async (): Promise<void> => {
    const group = groups.shift()
    if (group === undefined) return
    await translateGroup(group.at, group.items, options)
    await runNext()
  }
  await Promise.all(Array.from({ length: CALLS_AT_ONCE }, runNext))
}

async function translateGroup(
  at: number,
  texts: readonly string[],
  { by, source, target, signal, onResult }: TranslateOptions,
): Promise<void> {
  const langs = { source_lang: source, target_lang: target }
  const body = { model: by.model, ...langs, text_list: texts }
  const path = `${by.base}/translate/v1/batch-translate`
  const { translations } = await call<{ translations: Translation[] }>(path, { body, signal })
  translations.forEach((translation, i) => {
    onResult(at + i, translation)
  })
}
