/**
 * A state that reads and writes text: a slot, the tokens that it has consumed, and tokens of its text that it has not
 * consumed yet. Together they always make up the whole text: if a stop string cuts an answer, the slot is reset to
 * before it.
 */
import { landed } from '../backend/flight.ts'
import { AnswerText, END_OF_TEXT } from '../engine/answer/answer-text.ts'
import { StopStrings } from '../engine/answer/stop-strings.ts'
import { SkeinError } from '../errors.ts'
import { joinBytes, utf8 } from '../files/bytes.ts'
import type { Runner, SampleSpec } from '../model/runner.ts'
import { type SamplingNumbers, samplingNumbers, stopsOf, type TextOptions } from '../sampling.ts'
import { joinTokens, type ModelIdentity } from '../state/snapshot.ts'
import { decodeSnapshot, encodeSnapshot } from '../state/snapshot-file.ts'
import type { TokenCodec } from '../tokenizer/codec.ts'
import type { Slots } from './slots.ts'
import type { Steps } from './steps.ts'

/** Shared by all states of a model. */
export interface StateHome {
  readonly runner: Runner
  readonly steps: Steps
  readonly slots: Slots
  readonly tokenizer: TokenCodec
  readonly identity: ModelIdentity
}

/** A point where an answer can be cut: before text that may become a stop string. */
interface Cut {
  readonly consumed: Int32Array
  /** Bytes of the answer up to this point. */
  readonly numBytes: number
}

export class LlmState {
  readonly #home: StateHome
  /** Null once it is closed. */
  #slot: number | null
  #consumed: Int32Array
  #tail: Int32Array
  #isBusy = false

  constructor(home: StateHome, slot: number, consumed: Int32Array, tail: Int32Array) {
    this.#home = home
    this.#slot = slot
    this.#consumed = consumed
    this.#tail = tail
  }

  /** The zero state, before any text. */
  static begin(home: StateHome): LlmState {
    return new LlmState(home, home.slots.take(), NONE, NONE)
  }

  /** Restores a state of `save`, made here or on a server. Throws state_incompatible for a state of another model. */
  static async restore(home: StateHome, file: Uint8Array): Promise<LlmState> {
    const { tokens, tail, state } = decodeSnapshot(file, home.identity).snapshot
    const slot = home.slots.take()
    try {
      await landed(home.runner.writeState(slot, state))
    } catch (error) {
      home.slots.give(slot)
      throw error
    }
    return new LlmState(home, slot, tokens, tail)
  }

  /** Everything it has read and written. */
  get text(): string {
    return this.#home.tokenizer.decode(this.tokens)
  }

  get tokens(): Int32Array {
    return joinTokens(this.#consumed, this.#tail)
  }

  /** Reads text without generating any. */
  async read(text: string, signal?: AbortSignal): Promise<void> {
    await this.#alone(async () => {
      const tokens = joinTokens(this.#tail, this.#home.tokenizer.encode(text))
      this.#tail = tokens
      // The last token is consumed when the next text is generated.
      await this.#feed(tokens.length - 1, signal)
    })
  }

  /**
   * Reads a prompt and yields the continuation in pieces of whole characters. Leaving the loop ends the answer there.
   */
  async *generate(prompt: string, options: TextOptions = {}): AsyncGenerator<string, void> {
    this.#begin()
    const { tokenizer, runner } = this.#home
    let cut: Cut | null = null
    try {
      const sampling = samplingNumbers((name, row) => {
        const value = options[name] ?? row.ownDefault ?? row.off
        if (value >= row.min && value <= row.max) return value
        throw new SkeinError('invalid_request', `${name} must be ${row.min} to ${row.max}`, { param: name })
      })
      this.#tail = joinTokens(this.#tail, tokenizer.encode(prompt))
      if (this.#tail.length === 0)
        throw new SkeinError('invalid_request', 'there is no text to continue: give a prompt')
      runner.resetPenalties(this.#slot!, this.tokens)
      const stops = stopsOf(options)
      const text = new AnswerText(tokenizer, new StopStrings(stops), false)
      const answer: Uint8Array[] = []
      const seed = BigInt.asUintN(64, BigInt(options.seed ?? crypto.getRandomValues(new BigUint64Array(1))[0]!))
      const most = options.maxTokens ?? 512
      for (let position = 0; position < most; position++) {
        await this.#feed(this.#tail.length - 1, options.signal)
        const token = await this.#draw(sampling, seed, position)
        if (token === END_OF_TEXT) break
        const numBytes = answer.reduce((sum, { length }) => sum + length, 0)
        answer.push(tokenizer.bytesOf(token))
        // Whatever happens next, this token belongs to the text.
        this.#tail = Int32Array.of(token)
        const matched = text.push(token, null)
        const isOpen = stops.length > 0 && (text.isHolding || isAmidCharacter(answer))
        if (isOpen || matched !== null) cut ??= this.#mark(numBytes)
        else cut = null
        if (matched !== null) this.#cutAt(cut!, joinBytes(answer), matched)
        const piece = text.take()?.text ?? ''
        if (piece !== '') yield piece
        if (matched !== null) return
      }
      text.end()
      const rest = text.take()?.text ?? ''
      if (rest !== '') yield rest
    } finally {
      this.#isBusy = false
    }
  }

  /** A copy of this state with the same text, in its own slot. */
  fork(): LlmState {
    const slot = this.#own()
    const copy = this.#home.slots.take()
    this.#home.runner.copySlot(slot, copy)
    return new LlmState(this.#home, copy, this.#consumed, this.#tail)
  }

  /** The state and its text as a file. */
  async save(): Promise<Uint8Array<ArrayBuffer>> {
    return await this.#alone(async () => {
      const state = await landed(this.#home.runner.readState(this.#slot!))
      const snapshot = { tokens: this.#consumed, tail: this.#tail, state }
      return encodeSnapshot(snapshot, this.#home.identity, { namespace: '', isForeign: false })
    })
  }

  /** Frees its slot. */
  close(): void {
    if (this.#isBusy) throw busy()
    if (this.#slot !== null) this.#home.slots.give(this.#slot)
    this.#slot = null
  }

  #own(): number {
    if (this.#slot === null) throw new SkeinError('invalid_request', 'this state is closed')
    if (this.#isBusy) throw busy()
    return this.#slot
  }

  #begin(): void {
    this.#own()
    this.#isBusy = true
  }

  async #alone<T>(work: () => Promise<T>): Promise<T> {
    this.#begin()
    try {
      return await work()
    } finally {
      this.#isBusy = false
    }
  }

  /** Consumes the first tokens of the tail. */
  async #feed(count: number, signal: AbortSignal | undefined): Promise<void> {
    const { steps } = this.#home
    for (let left = count; left > 0; ) {
      checkSignal(signal)
      const tokens = this.#tail.subarray(0, Math.min(left, steps.maxTokens))
      await steps.run({ slot: this.#slot!, tokens, samples: [] })
      this.#took(tokens.length)
      left -= tokens.length
    }
    checkSignal(signal)
  }

  /** Consumes the tail's last token and returns the next drawn one. */
  async #draw(sampling: SamplingNumbers, seed: bigint, position: number): Promise<number> {
    const slot = this.#slot!
    const sample: SampleSpec = { ...sampling, slot, seed, position, stream: 0, logprobs: null, bias: null }
    const { drawn } = await this.#home.steps.run({ slot, tokens: this.#tail, samples: [sample] })
    this.#took(1)
    const { token } = drawn[0]!
    if (token < 0) throw new SkeinError('kernel_failed', 'the model computed numbers that are not finite')
    return token
  }

  #took(count: number): void {
    this.#consumed = joinTokens(this.#consumed, this.#tail.subarray(0, count))
    this.#tail = this.#tail.slice(count)
  }

  /** Keeps a copy of the slot, which has consumed all but the last drawn token. */
  #mark(numBytes: number): Cut {
    this.#home.runner.copySlot(this.#slot!, this.#home.slots.spareOf(this.#slot!))
    return { consumed: this.#consumed, numBytes }
  }

  /** Resets to before the stop string; the part of the answer that is kept since then becomes the tail. */
  #cutAt({ consumed, numBytes }: Cut, answer: Uint8Array, stop: string): void {
    const end = indexOfBytes(answer, utf8(stop), numBytes)
    this.#home.runner.copySlot(this.#home.slots.spareOf(this.#slot!), this.#slot!)
    this.#consumed = consumed
    this.#tail = this.#home.tokenizer.encodeBytes(answer.subarray(numBytes, end))
  }
}

const NONE = new Int32Array(0)

function busy(): SkeinError {
  return new SkeinError('conflict', 'this state is reading or writing; fork it, or wait for it')
}

function checkSignal(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new SkeinError('aborted', 'the caller cancelled the answer')
}

/** Whether the last character lacks bytes. */
function isAmidCharacter(parts: readonly Uint8Array[]): boolean {
  const end = joinBytes(parts.slice(-4)).subarray(-3)
  for (const [i, byte] of end.entries()) {
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1
    if (i + length > end.length) return true
  }
  return false
}

/** Position of `part` from `start` on; the end if it does not occur. */
function indexOfBytes(bytes: Uint8Array, part: Uint8Array, start: number): number {
  for (let at = start; at + part.length <= bytes.length; at++)
    if (part.every((byte, i) => bytes[at + i] === byte)) return at
  return bytes.length
}
