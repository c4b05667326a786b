/** One row of a batch while it grows: its text, the part that a stream has not been sent, and how to continue it. */
import type { FinishReason, GenerateRequest, SessionPosition, SessionUse } from '../../engine/messages.ts'
import { concatTokens } from '../../files/bytes.ts'
import type { Answered } from '../answers.ts'
import type { PausedRow } from '../live-calls.ts'
import type { TextCodec } from '../models.ts'

export class Row {
  readonly index: number
  readonly request: GenerateRequest
  text = ''
  promptTokens: number
  /** Known at the end. */
  completionTokens = 0
  reason: FinishReason | null = null
  /** The turn of a session that it became. */
  session: SessionPosition | null = null
  /** The turn of a session that it continues; undefined without one, and before the prompt was read. */
  #from: number | undefined
  /** Tokens whose text has come. */
  readonly #tokens: number[] = []
  #unsent = ''
  #numUnsent = 0
  /** The part of the next token's text that was shown before the row was paused; it is cut off. */
  #overlap: string
  #isOverlapPast = false

  constructor(index: number, request: GenerateRequest, overlap = '') {
    this.index = index
    this.request = request
    this.promptTokens = request.prompt.length
    this.#overlap = overlap
  }

  take(event: Answered['event']): void {
    if (event.type === 'prompt') {
      this.promptTokens = event.contextTokens ?? this.promptTokens
      this.#from = event.session?.turn
      return
    }
    if (event.type === 'finish') {
      this.reason = event.reason
      this.completionTokens = event.completionTokens
      this.session = event.session ?? null
      return
    }
    this.#tokens.push(...event.tokens)
    this.#numUnsent += event.tokens.length
    const text = this.#withoutOverlap(event.text)
    this.text += text
    this.#unsent += text
  }

  /** Text to send: once `chunkSize` tokens have gathered, or at the end; null if there is none yet. */
  flush(chunkSize: number): string | null {
    if (this.#unsent === '') return null
    if (this.reason === null && this.#numUnsent < chunkSize) return null
    const text = this.#unsent
    this.#unsent = ''
    this.#numUnsent = 0
    return text
  }

  /** The row has ended, or has all its tokens and only its end has not been reported. */
  get isWhole(): boolean {
    return this.reason !== null || this.#tokens.length >= this.request.maxTokens
  }

  /** The request that goes on where this row stands. */
  paused(codec: TextCodec): PausedRow {
    const { request, index } = this
    // A token may have been shown in part only (a space, and the first byte of a character): it is drawn again.
    const shown = Buffer.from(this.#overlap + this.text)
    let numTokens = 0
    let numBytes = 0
    for (const token of this.#tokens) {
      const length = codec.bytesOf(token).length
      if (numBytes + length > shown.length) break
      numBytes += length
      numTokens++
    }
    const isCut = numTokens < this.#tokens.length || this.#tokens.length === 0
    const tokens = this.#tokens.slice(0, numTokens)
    const prompt = concatTokens([request.prompt, tokens])
    const { promptAtBeginning: first } = request
    const promptAtBeginning = first === undefined ? undefined : concatTokens([first, tokens])
    const maxTokens = Math.max(1, request.maxTokens - numTokens)
    const session = this.#continued()
    return {
      index,
      request: { ...request, prompt, promptAtBeginning, maxTokens, session },
      overlap: isCut ? shown.toString('utf8', numBytes) : '',
    }
  }

  /** The head may be another turn by then: that of another call, or of this very answer if it had just ended. */
  #continued(): SessionUse | undefined {
    const { session } = this.request
    return session && { ...session, from: this.#from ?? session.from }
  }

  #withoutOverlap(text: string): string {
    if (this.#isOverlapPast || text === '') return text
    this.#isOverlapPast = true
    // Another token may be drawn.
    if (!text.startsWith(this.#overlap)) this.#overlap = ''
    return text.slice(this.#overlap.length)
  }
}
