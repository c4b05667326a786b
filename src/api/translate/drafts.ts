/** Texts while they are translated: each as far as its pieces are written, told of at most every few characters. */
import type { Part } from './text.ts'
import { keyOf, type Written } from './translator.ts'

/** A text is told of again when it has so much more, or a sixteenth: a long one not with every word. */
const STEP_CHARS = 6
const STEP_SHARE = 1 / 16

/** Of a text: its pieces that are not over, what it has, and what of that was not told of. */
interface Draft {
  open: number
  chars: number
  untold: number
}

export class Drafts {
  readonly #texts: readonly (readonly Part[])[]
  readonly #drafts: readonly Draft[]
  /** In which texts a piece is. */
  readonly #places = new Map<string, number[]>()
  readonly #written = new Map<string, Written>()

  constructor(texts: readonly (readonly Part[])[]) {
    this.#texts = texts
    this.#drafts = texts.map(() => ({ open: 0, chars: 0, untold: 0 }))
    for (const [i, parts] of texts.entries()) {
      for (const part of parts) {
        if (typeof part === 'string') continue
        const key = keyOf(part)
        const places = this.#places.get(key)
        if (places?.at(-1) === i) continue
        if (places === undefined) this.#places.set(key, [i])
        else places.push(i)
        this.#drafts[i]!.open++
      }
    }
  }

  /** The texts that have more now, whole so far. */
  *take(written: Written): Generator<{ index: number; text: string; done: boolean }> {
    const { key, text, isOver } = written
    const before = this.#written.get(key)
    const more = text.length - (before?.text.length ?? 0)
    const ends = isOver && before?.isOver !== true
    this.#written.set(key, written)
    for (const index of this.#places.get(key) ?? []) {
      const draft = this.#drafts[index]!
      draft.chars += more
      draft.untold += more
      if (ends) draft.open--
      const done = draft.open === 0
      if (!done && draft.untold < Math.max(STEP_CHARS, draft.chars * STEP_SHARE)) continue
      draft.untold = 0
      yield { index, text: this.#textOf(index), done }
    }
  }

  #textOf(index: number): string {
    const textOf = (part: Part) =>
      typeof part === 'string' ? part : (this.#written.get(keyOf(part))?.text ?? '')
    return this.#texts[index]!.map(textOf).join('')
  }
}
