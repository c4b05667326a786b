/** The texts of a call to what there is to translate. Runs on the event loop for short ones, else as a task of a thread. */
import { SkeinError } from '../../errors.ts'
import { runTask, taskPlace } from '../../threads/pool.ts'
import { task } from '../../threads/task.ts'
import { detectLanguage, UNKNOWN } from './detect.ts'
import { labelOf } from './languages.ts'
import type { Delimiters } from './marks.ts'
import { type Part, toParts } from './text.ts'

export interface Texts {
  readonly texts: readonly string[]
  /** Null: each text shows its own. */
  readonly language: string | null
  readonly delimiters: Delimiters | null
  /** Of all texts. */
  readonly mostPieces: number
}

interface Prepared {
  /** Of each text. */
  readonly languages: readonly string[]
  readonly parts: readonly (readonly Part[])[]
}

/** What a text is called whose language nobody knows. */
const NO_LABEL = 'Text'
/** About a millisecond of the event loop. */
const INLINE_CHARS = 16 * 1024
const PREPARE = taskPlace(import.meta.url, './prepare.js', 'prepareTask')

export function prepareTexts(texts: Texts): Promise<Prepared> | Prepared {
  const size = texts.texts.reduce((sum, text) => sum + text.length, 0)
  return size <= INLINE_CHARS ? prepare(texts) : runTask(PREPARE, texts)
}

function prepare({ texts, language, delimiters, mostPieces }: Texts): Prepared {
  const languages = texts.map((text) => language ?? detectLanguage(text))
  const fallback = commonest(languages)
  let left = mostPieces
  const parts = texts.map((text, i) => {
    const own = languages[i] === UNKNOWN ? fallback : languages[i]!
    const label = own === UNKNOWN ? NO_LABEL : labelOf(own)
    const all = toParts(text, label, delimiters)
    left -= piecesOf(all)
    if (left < 0) throw tooManyPieces(mostPieces)
    return all
  })
  return { languages, parts }
}

export const prepareTask = task(prepare)

export function piecesOf(parts: readonly Part[]): number {
  return parts.reduce((sum, part) => sum + (typeof part === 'string' ? 0 : 1), 0)
}

/** Each is a row of its own. */
export function tooManyPieces(most: number): SkeinError {
  const message = `text_list: more than ${most} paragraphs to translate; send them in several requests`
  return new SkeinError('too_large', message, { param: 'text_list' })
}

/** The language most texts of the call are in: for the prompts of those that do not show theirs. */
function commonest(languages: readonly string[]): string {
  const counts = new Map<string, number>()
  for (const language of languages) {
    if (language !== UNKNOWN) counts.set(language, (counts.get(language) ?? 0) + 1)
  }
  const [first] = [...counts].sort((a, b) => b[1] - a[1])
  return first?.[0] ?? UNKNOWN
}
