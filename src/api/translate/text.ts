/**
 * One text of a call, taken apart and put together again: paragraphs are translated one by one (several in one prompt come
 * back merged or fewer), white space around them stays as it was, and what has no letters is not translated at all.
 */
import type { FinishReason } from '../../engine/messages.ts'
import { type Delimiters, hasSameMarks, splitAtMarks, withoutMarks } from './marks.ts'

/** One text under one label: one prompt. */
export interface Piece {
  readonly source: string
  readonly text: string
}

export function keyOf({ source, text }: Piece): string {
  return `${source}\n${text}`
}

/** What became of a piece; null: it failed. */
export type Outcome = { readonly text: string; readonly reason: FinishReason } | null

/** By the pieces' keys. */
export type Outcomes = ReadonlyMap<string, Outcome>

/** Parts in order; strings are kept as they are. */
export type Part = string | Piece

export interface Translated {
  readonly text: string
  readonly reason: FinishReason
  /** One that failed: half a translation that looks whole would be worse than none. */
  readonly failed: Piece | null
}

export function toParts(text: string, source: string, marks: Delimiters | null): Part[] {
  return paragraphsOf(text.trim()).flatMap((paragraph) => partsOf(paragraph, source, marks))
}

/** Paragraphs and, at the odd places, the blank lines between them. */
function paragraphsOf(text: string): string[] {
  const parts: string[] = []
  let from = 0
  let [start, end, numLines] = [0, 0, 0]
  const cut = () => {
    if (numLines < 2) return
    parts.push(text.slice(from, start), text.slice(start, end))
    from = end
  }
  for (const { index, 0: line } of text.matchAll(/\r?\n[ \t]*/g)) {
    if (index !== end || numLines === 0) {
      cut()
      start = index
      numLines = 0
    }
    numLines++
    end = index + line.length
  }
  cut()
  return [...parts, text.slice(from)]
}

/** White space, a piece to translate, white space. */
function partsOf(text: string, source: string, marks: Delimiters | null): Part[] {
  const hasLetters = /\p{L}/u.test(withoutMarks(text, marks))
  if (!hasLetters) return [text]
  const core = text.trim()
  const at = text.indexOf(core)
  return [text.slice(0, at), { source, text: core }, text.slice(at + core.length)]
}

/** The parts in which pieces whose marks did not come through are split at them. */
export function splitBroken(parts: readonly Part[], marks: Delimiters | null, outcomes: Outcomes): Part[] {
  return parts.flatMap((part) => {
    if (typeof part === 'string') return [part]
    const outcome = outcomes.get(keyOf(part)) ?? null
    if (outcome === null || hasSameMarks(part.text, outcome.text, marks)) return [part]
    return splitAtMarks(part.text, marks).flatMap((between, i) =>
      // Marks stand at the odd places.
      i % 2 === 1 ? [between] : partsOf(between, part.source, marks),
    )
  })
}

export function assemble(parts: readonly Part[], marks: Delimiters | null, outcomes: Outcomes): Translated {
  let text = ''
  let reason: FinishReason = 'stop'
  for (const part of parts) {
    if (typeof part === 'string') {
      text += part
      continue
    }
    const outcome = outcomes.get(keyOf(part)) ?? null
    if (outcome === null) return { text: '', reason, failed: part }
    // The model may have made up a mark.
    const isFaithful = hasSameMarks(part.text, outcome.text, marks)
    text += isFaithful ? outcome.text : withoutMarks(outcome.text, marks)
    if (outcome.reason === 'length') reason = 'length'
  }
  return { text, reason, failed: null }
}
