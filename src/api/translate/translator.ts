/**
 * Runs the texts of one call: every distinct piece is one row of the batch, greedy, with a cap by its own length. A piece
 * that fails says so and costs no other.
 */
import { type GenerateRequest, PLAIN_REQUEST, PLAIN_SAMPLING } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { turns } from '../../threads/turns.ts'
import { runEach } from '../answers.ts'
import { boundariesAt, checkPrompt, encodeTexts } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { ServedModel } from '../models.ts'
import { keyOf, type Outcome, type Piece } from './text.ts'

export interface Written {
  /** `keyOf` the piece. */
  readonly key: string
  readonly text: string
  readonly isOver: boolean
}

/** A translation is hardly ever longer than this; without a cap, one that runs on would hold its slot for long. */
const CAP_PER_TOKEN = 4
const CAP_BASE = 64

interface TranslatorContext {
  readonly id: string
  readonly model: ServedModel
  readonly tenant: string
  readonly limits: RequestLimits
  readonly signal: AbortSignal
  /** Nobody is told what is written before the end. */
  readonly isGathered: boolean
}

export class Translator {
  readonly #context: TranslatorContext
  readonly #target: string
  /** Of the pieces that were tried. */
  readonly outcomes = new Map<string, Outcome>()
  readonly #errors = new Map<string, SkeinError>()
  #numRequests = 0

  /** `target` is the label of the language to translate into. */
  constructor(context: TranslatorContext, target: string) {
    this.#context = context
    this.#target = target
  }

  /** Translates what has not been yet, telling of each as it is written; afterwards `outcomes` has all of them. */
  async *run(pieces: readonly Piece[]): AsyncGenerator<Written> {
    const open = new Map(pieces.map((piece) => [keyOf(piece), piece]))
    const rows: { readonly key: string; readonly request: GenerateRequest; text: string }[] = []
    const { model, signal } = this.#context
    const fresh = [...open].filter(([key]) => !this.outcomes.has(key))
    const texts = fresh.map(([, { source, text }]) => `${source}: ${text}\n\n${this.#target}:`)
    const prompts = await encodeTexts(model, texts, signal)
    for (const [i, [key, { source }]] of fresh.entries()) {
      try {
        const request = await turns.do(() => this.#requestOf(source, prompts[i]!))
        rows.push({ key, request, text: '' })
      } catch (thrown) {
        this.#fail(key, SkeinError.from(thrown))
      }
    }
    const requests = rows.map(({ request }) => request)
    for await (const arrival of runEach(model.client, requests, signal)) {
      const row = rows[arrival.prompt]!
      if ('error' in arrival) this.#fail(row.key, arrival.error)
      else if (arrival.event.type === 'text') {
        row.text += arrival.event.text
        yield { key: row.key, text: row.text.trimStart(), isOver: false }
      } else if (arrival.event.type === 'finish') {
        const { reason } = arrival.event
        this.outcomes.set(row.key, { text: row.text.trim(), reason })
        yield { key: row.key, text: row.text.trim(), isOver: true }
      }
    }
  }

  #fail(key: string, error: SkeinError): void {
    this.outcomes.set(key, null)
    this.#errors.set(key, error)
  }

  /** Of a piece that failed. */
  errorOf(piece: Piece): SkeinError {
    return this.#errors.get(keyOf(piece)) ?? new SkeinError('internal', 'a text was not translated')
  }

  /** The error of all pieces, if there is not one that was translated: then the call has failed. */
  get failure(): SkeinError | null {
    if (this.#errors.size < this.outcomes.size) return null
    const [first = null] = this.#errors.values()
    return first
  }

  #requestOf(source: string, tokens: Int32Array): GenerateRequest {
    const { id, model, tenant, limits, isGathered } = this.#context
    const prompt = checkPrompt(tokens, model, 'text_list')
    const label = `${source}:`
    return {
      id: `translate-${id}-${this.#numRequests++}`,
      prompt,
      boundaries: boundariesAt(prompt, model.tokenizer, [Buffer.byteLength(label)]),
      tenant,
      ...PLAIN_REQUEST,
      maxTokens: Math.min(CAP_PER_TOKEN * prompt.length + CAP_BASE, limits.maxTokens),
      sampling: GREEDY,
      // The end of the paragraph: what follows would be the next text the model makes up.
      stop: { strings: ['\n\n'], tokens: [], ignoreEos: false },
      isGathered,
    }
  }
}

const GREEDY = { ...PLAIN_SAMPLING, topK: 1, topP: 0 }
