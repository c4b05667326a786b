/**
 * Which rows of a step have guesses, and how many. A row with guesses feeds several tokens and draws at each of them; a draw
 * that differs from the guess is the one that counts, and the state goes back to what it was before the row. Answers are
 * what they are without it (docs/operations.md). What became of the guesses is outcomes.ts.
 */
import { assert } from '../../errors.ts'
import type { BatchRow, Runner } from '../../model/runner.ts'
import type { GuessCounts } from '../messages.ts'
import type { Sequence } from '../sequence.ts'
import { Pace } from './pace.ts'
import type { OpenProposer, Proposer } from './proposer.ts'

/** Tokens of answers in a step up to which one more costs little beside reading the weights. */
const CHEAP_TOKENS = 8

interface Guesser {
  readonly proposer: Proposer
  readonly pace: Pace
  /** Tokens of the answer that the proposer knows. */
  numKnown: number
  accepted: number
  rejected: number
}

export class Speculation {
  readonly counters = { guessedTokens: 0, acceptedTokens: 0 }
  readonly #runner: Runner
  readonly #open: OpenProposer | null
  readonly #spares: number[]
  readonly #guessers = new WeakMap<Sequence, Guesser>()

  /** `open` null: nothing is guessed. */
  constructor(runner: Runner, open: OpenProposer | null) {
    this.#runner = runner
    this.#open = open
    this.#spares = Array.from({ length: runner.numSpares }, (_, i) => i)
  }

  /** Guesses for rows of a step that has so many tokens without them, and slots for so many answers. */
  roomBeside(numTokens: number, numSlots: number): number {
    if (this.#open === null) return 0
    const { maxTokens, maxLogits, maxSamples } = this.#runner
    const free = Math.floor((maxTokens - numTokens) / 4)
    return Math.min(free, maxLogits - numSlots, maxSamples - numSlots, CHEAP_TOKENS - numTokens)
  }

  /** Its next row is to have guesses if something can be guessed, for which its last draw must be known. */
  waitsFor(sequence: Sequence): boolean {
    if (sequence.numAwaited === 0 || this.#spares.length === 0) return false
    return mayGuess(sequence) && this.#guesserOf(sequence)?.pace.isPausing === false
  }

  /**
   * The next row of an answer with at most so many guesses; null where it has none. Tokens that went back with a state are fed
   * again and leave less room, so that a state does not go back for ever.
   */
  rowOf(sequence: Sequence, room: number): BatchRow | null {
    const spare = this.#spares.at(-1)
    if (spare === undefined || room < 1 || sequence.numAwaited > 0) return null
    if (!mayGuess(sequence)) return null
    const guesses = this.#guess(sequence, room)
    if (guesses.length === 0) return null
    this.#spares.pop()
    return sequence.rowWithGuesses(guesses, spare)
  }

  /** Of a row that has landed. */
  release(spare: number): void {
    this.#spares.push(spare)
  }

  learn(sequence: Sequence, guessed: number, right: number): void {
    const guesser = this.#guessers.get(sequence)
    assert(guesser !== undefined, 'guesses of an answer that has none')
    guesser.pace.learn(guessed, right)
    guesser.accepted += right
    guesser.rejected += guessed - right
    this.counters.guessedTokens += guessed
    this.counters.acceptedTokens += right
  }

  /** What became of an answer's guesses; nothing where there were none. */
  countsOf(sequence: Sequence): { readonly guesses?: GuessCounts } {
    const { accepted, rejected } = this.#guessers.get(sequence) ?? NONE
    return accepted + rejected === 0 ? {} : { guesses: { accepted, rejected } }
  }

  #guess(sequence: Sequence, room: number): readonly number[] {
    const guesser = this.#guesserOf(sequence)
    if (guesser === null) return []
    const { owner, drawn, numDrawn } = sequence
    const { proposer, pace } = guesser
    for (; guesser.numKnown < numDrawn; guesser.numKnown++) proposer.add(drawn[guesser.numKnown]!)
    // The row draws one token more than it guesses.
    const most = Math.min(pace.next(), room, owner.request.maxTokens - numDrawn - 1)
    if (most < 1) return []
    const guesses = proposer.propose(most)
    // To know the last draw it has waited for it.
    if (guesses.length === 0 && this.#runner.maxFlights > 1) pace.learn(0, 0)
    // No state is to have consumed the token that ends the answer.
    const end = guesses.findIndex((token) => owner.stopTokens.has(token))
    return end === -1 ? guesses : guesses.slice(0, end)
  }

  #guesserOf(sequence: Sequence): Guesser | null {
    const known = this.#guessers.get(sequence)
    if (known !== undefined || this.#open === null) return known ?? null
    const { owner, index } = sequence
    const proposer = this.#open(owner.prompt, owner.request, index)
    const guesser = { proposer, pace: new Pace(), numKnown: 0, ...NONE }
    this.#guessers.set(sequence, guesser)
    return guesser
  }
}

const NONE = { accepted: 0, rejected: 0 }

/** What a grammar allows is known one token at a time, and a mixture has several states. */
function mayGuess({ owner, blend }: Sequence): boolean {
  return owner.rules === null && blend === null
}
