/** Translated pieces back to texts. Runs on the event loop for short ones, else as a task of a thread. */
import { runTask, taskPlace } from '../../threads/pool.ts'
import { task } from '../../threads/task.ts'
import { turns } from '../../threads/turns.ts'
import type { Delimiters } from './marks.ts'
import { assemble, type Outcomes, type Part, splitBroken, type Translated } from './text.ts'

interface Texts {
  readonly texts: readonly (readonly Part[])[]
  readonly delimiters: Delimiters | null
  readonly outcomes: Outcomes
}

/** Where most of it is marks, a millisecond of the event loop. */
const INLINE_CHARS = 16 * 1024
const SPLIT = taskPlace(import.meta.url, './join.js', 'splitTask')
const JOIN = taskPlace(import.meta.url, './join.js', 'joinTask')

/** The texts with those pieces split whose marks did not come through. */
export function splitTexts(texts: Texts): Promise<Part[][]> {
  return isShort(texts) ? turns.do(() => split(texts)) : runTask(SPLIT, texts)
}

export function joinTexts(texts: Texts): Promise<Translated[]> {
  return isShort(texts) ? turns.do(() => join(texts)) : runTask(JOIN, texts)
}

function split({ texts, delimiters, outcomes }: Texts): Part[][] {
  return texts.map((parts) => splitBroken(parts, delimiters, outcomes))
}

function join({ texts, delimiters, outcomes }: Texts): Translated[] {
  return texts.map((parts) => assemble(parts, delimiters, outcomes))
}

export const splitTask = task(split)
export const joinTask = task(join)

function isShort({ texts, outcomes }: Texts): boolean {
  let chars = 0
  for (const parts of texts)
    for (const part of parts) chars += typeof part === 'string' ? part.length : part.text.length
  for (const outcome of outcomes.values()) chars += outcome?.text.length ?? 0
  return chars <= INLINE_CHARS
}
