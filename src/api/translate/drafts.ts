/** Texts while they are translated: each as far as its pieces are written, told of at most every few characters. */
import type { Part } from './text.ts'
import { keyOf, type Written } from './translator.ts'

/** A piece is told of again when it has so much more. */
const STEP_CHARS = 6

export class Drafts {
  readonly #texts: readonly (readonly Part[])[]
  /** In which texts a piece is. */
  readonly #places = new Map<string, number[]>()
  readonly #written = new Map<string, Written>()
  /** Length of what was told of last. */
  readonly #told = new Map<string, number>()

  constructor(texts: readonly (readonly Part[])[]) {
    this.#texts = texts
    for (const [i, parts] of texts.entries()) {
      for (const part of parts) {
        if (typeof part === 'string') continue
        const places = this.#places.get(keyOf(part)) ?? []
        if (places.at(-1) !== i) this.#places.set(keyOf(part), [...places, i])
      }
    }
  }

  /** The texts that have more now, whole so far. */
  *take(written: Written): Generator<{ index: number; text: string; done: boolean }> {
    const { key, text, isOver } = written
    this.#written.set(key, written)
    if (!isOver && text.length < (this.#told.get(key) ?? 0) + STEP_CHARS) return
    this.#told.set(key, text.length)
    for (const index of this.#places.get(key) ?? []) yield { index, ...this.#draftOf(index) }
  }

  #draftOf(index: number): { readonly text: string; readonly done: boolean } {
    const parts = this.#texts[index]!.map((part) =>
      typeof part === 'string' ? part : this.#written.get(keyOf(part)),
    )
    const text = parts
      .map((part) => (typeof part === 'string' ? part : (part?.text ?? '')))
      .join('')
    const isOver = parts.every((part) => typeof part === 'string' || part?.isOver === true)
    return { text, done: isOver }
  }
}
