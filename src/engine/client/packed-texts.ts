/**
 * Text of one choice that waits for its consumer. What waits for long is packed into bytes: an event with
 * log-probabilities takes some twenty times as much as an object, and holds on to the whole message that it came in.
 * What comes out is what went in, merged; a chunk at a time where it was packed. It bounds nothing: whoever holds it
 * looks at `bytes`.
 */
import type { EngineEvent, TokenText } from '../messages.ts'
import { NUMBER_BYTES, sizeOfToken, TokenReader, writeNumber, writeToken } from './token-bytes.ts'

type TextEvent = EngineEvent & { readonly type: 'text' }

/** A consumer is given so much at once; the first chunks are smaller. */
const CHUNK_BYTES = 4096
const FIRST_CHUNK_BYTES = 256
/** Bytes of memory that a chunk, or an unpacked event, takes beside its content. */
const OVERHEAD_BYTES = 200

export class PackedTexts {
  /** The bytes that are held, roughly. */
  bytes = 0
  readonly #id: string
  readonly #index: number
  readonly #hasLogprobs: boolean
  /** What has not been packed. */
  #loose: TextEvent | null
  readonly #chunks: { readonly content: Buffer; used: number }[] = []
  #nextBytes = FIRST_CHUNK_BYTES

  constructor(event: TextEvent) {
    this.#id = event.id
    this.#index = event.index
    this.#hasLogprobs = event.logprobs !== null
    this.#loose = event
    this.bytes = sizeOf(event) + OVERHEAD_BYTES
  }

  get isEmpty(): boolean {
    return this.#loose === null && this.#chunks.length === 0
  }

  add(event: TextEvent): void {
    if (this.#loose === null) {
      this.#append(event)
      return
    }
    this.#loose = joined(this.#loose, event)
    this.bytes += sizeOf(event)
  }

  /** What is here will be here longer, and so will what is added until all of it has been taken. */
  pack(): void {
    if (this.#loose === null) return
    this.bytes = 0
    this.#append(this.#loose)
    this.#loose = null
  }

  #append(event: TextEvent): void {
    const size = sizeOf(event)
    let chunk = this.#chunks.at(-1)
    if (chunk === undefined || chunk.used + size > chunk.content.length) {
      // Not of a pool, which would live as long as any part of it.
      chunk = { content: Buffer.allocUnsafeSlow(Math.max(size, this.#nextBytes)), used: 0 }
      this.#nextBytes = Math.min(CHUNK_BYTES, 2 * this.#nextBytes)
      this.#chunks.push(chunk)
      this.bytes += chunk.content.length + OVERHEAD_BYTES
    }
    chunk.used = write(event, chunk.content, chunk.used)
  }

  /** What came first, of what is held. */
  take(): TextEvent {
    const loose = this.#loose
    if (loose !== null) {
      this.#loose = null
      this.bytes = 0
      return loose
    }
    const { content, used } = this.#chunks.shift()!
    this.bytes -= content.length + OVERHEAD_BYTES
    return this.#read(content.subarray(0, used))
  }

  #read(content: Buffer): TextEvent {
    const reader = new TokenReader(content)
    const texts: string[] = []
    const tokens: number[] = []
    const logprobs: TokenText[] = []
    while (reader.hasMore) {
      const [textBytes, numTokens, numLogprobs] = [reader.number(), reader.number(), reader.number()]
      texts.push(reader.text(textBytes))
      for (let i = 0; i < numTokens; i++) tokens.push(reader.number())
      for (let i = 0; i < numLogprobs; i++) logprobs.push(reader.token()!)
    }
    return {
      type: 'text',
      id: this.#id,
      index: this.#index,
      text: texts.join(''),
      tokens,
      logprobs: this.#hasLogprobs ? logprobs : null,
    }
  }
}

/** A busy gateway joins most tokens; a copy of the event and `concat` would take three times as long. */
function joined(one: TextEvent, next: TextEvent): TextEvent {
  const { type, id, index } = one
  const logprobs = one.logprobs?.concat(next.logprobs ?? []) ?? null
  return { type, id, index, text: one.text + next.text, tokens: [...one.tokens, ...next.tokens], logprobs }
}

/** At most. */
function sizeOf({ text, tokens, logprobs }: TextEvent): number {
  let size = 3 * NUMBER_BYTES + Buffer.byteLength(text) + NUMBER_BYTES * tokens.length
  for (const entry of logprobs ?? []) size += sizeOfToken(entry)
  return size
}

/** Returns where it ends. */
function write({ text, tokens, logprobs }: TextEvent, to: Buffer, start: number): number {
  let at = writeNumber(to, start, Buffer.byteLength(text))
  at = writeNumber(to, at, tokens.length)
  at = writeNumber(to, at, logprobs?.length ?? 0)
  at += to.write(text, at)
  for (const token of tokens) at = writeNumber(to, at, token)
  for (const entry of logprobs ?? []) at = writeToken(to, at, entry)
  return at
}
