/** Streams translations of paragraphs. The paragraphs of a call are rows of one batch. */
import { request } from './api.ts'
import type { Target } from './chat.ts'
import { groupsOf } from './paragraphs.ts'
import { readChunks } from './sse.ts'

/** Most paragraphs per call, the server's limit; more need further calls. */
const CALL_SIZE = 512

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
  /** A translation in progress; the final one may differ. */
  readonly onText: (index: number, text: string, isDone: boolean) => void
  readonly onResult: (index: number, translation: Translation) => void
}

type TranslateEvent =
  | { readonly index: number; readonly text: string; readonly done: boolean }
  | { readonly translations: readonly Translation[] }

/** Rejects if a whole call fails. A single failed paragraph has its own error. */
export async function translate(paragraphs: readonly string[], options: TranslateOptions): Promise<void> {
  for (const { at, items } of groupsOf(paragraphs, CALL_SIZE)) {
    await translateGroup(at, items, options)
  }
}

async function translateGroup(
  at: number,
  texts: readonly string[],
  { by, source, target, signal, onText, onResult }: TranslateOptions,
): Promise<void> {
  const langs = { source_lang: source, target_lang: target }
  const body = { model: by.model, ...langs, text_list: texts, stream: true }
  const reply = await request(`${by.base}/translate/v1/batch-translate`, { body, signal })
  for await (const event of readChunks(reply.body!)) {
    // The server's own shapes.
    const known = event as TranslateEvent
    if ('translations' in known) {
      for (const [i, translation] of known.translations.entries()) onResult(at + i, translation)
    } else onText(at + known.index, known.text, known.done)
  }
}
