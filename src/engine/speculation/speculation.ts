/**
 * Which rows of a step have guesses, and how many. A row with guesses feeds several tokens and draws at each of them; a draw
 * that differs from the guess is the one that counts, and the state goes back to what it was before the row. Answers are
 * what they are without it (docs/operations.md). What became of the guesses is outcomes.ts.
 */
import { assert } from '../../errors.ts'
import type { BatchRow, GuessCosts, Runner } from '../../model/runner.ts'
import type { GuessCounts } from '../messages.ts'
import type { Sequence } from '../sequence.ts'
import { Pace } from './pace.ts'
import type { OpenProposer, Proposer } from './proposer.ts'

/** Costs of guesses beside their tokens, in plain steps: copying states and, where steps overlap, making the next one wait. */
const COPY_COST = 0.03
const WAIT_COST = 0.07
/** The share of a step's answers that must have a guess before it pays that the device waits for the host. */
const WORTH_WAITING = 1 / 8

interface Guesser {
  readonly proposer: Proposer
  readonly pace: Pace
  /** Tokens of the answer that the proposer knows. */
  numKnown: number
  /** Its next row waits for a token that promised to be followed by a guess. */
  isWaiting: boolean
  /** A row of it with guesses is on its way. */
  isOnItsWay: boolean
  accepted: number
  rejected: number
}

export class Speculation {
  readonly counters = { guessedTokens: 0, acceptedTokens: 0 }
  readonly #runner: Runner
  readonly #open: OpenProposer | null
  readonly #spares: number[]
  readonly #guessers = new WeakMap<Sequence, Guesser>()
  /** The step being planned: its tokens of answers without guesses, and how many answers may have guesses. */
  #load = { plain: 1, guessing: 1 }

  /** `open` null: nothing is guessed. */
  constructor(runner: Runner, open: OpenProposer | null) {
    this.#runner = runner
    this.#open = open
    this.#spares = Array.from({ length: runner.numSpares }, (_, i) => i)
  }

  /**
   * Guesses for rows of a step of these answers, which has so many tokens without any, and slots for so many: as many as
   * pay if they are right.
   */
  roomBeside(sequences: readonly Sequence[], numTokens: number, numSlots: number): number {
    if (this.#open === null || numTokens === 0) return 0
    this.#load = { plain: numTokens, guessing: this.#promising(sequences).length }
    return this.#room(numTokens, numSlots)
  }

  #room(numTokens: number, numSlots: number): number {
    const { maxTokens, maxLogits, maxSamples, guessCosts } = this.#runner
    const free = Math.floor((maxTokens - numTokens) / 4)
    const most = Math.min(free, maxLogits - numSlots, maxSamples - numSlots)
    let [room, best] = [0, numTokens / costOf(guessCosts, numTokens)]
    for (const [tokens, cost] of guessCosts) {
      const total = Math.min(tokens, numTokens + most)
      if (total <= numTokens || total / cost <= best) continue
      room = total - numTokens
      best = total / cost
    }
    return room
  }

  /**
   * Whether the next step is planned when the last has landed: guesses need to know what was drawn, and answers that go on
   * meanwhile would make two steps of one. Worth it where something may be guessed for some of them.
   */
  waitsFor(sequences: readonly Sequence[], numSlots: number): boolean {
    if (this.#open === null || sequences.every(({ numAwaited }) => numAwaited === 0)) return false
    if (sequences.some((one) => this.#guessers.get(one)?.isOnItsWay)) return true
    const promising = this.#promising(sequences)
    if (promising.length === 0 || promising.length < sequences.length * WORTH_WAITING) return false
    const numTokens = sequences.reduce((sum, { owner }) => sum + owner.width, 0)
    if (this.#room(numTokens, numSlots) < 1) return false
    for (const guesser of promising) guesser.isWaiting = true
    return true
  }

  /** The guessers of the answers for which something may be guessed. */
  #promising(sequences: readonly Sequence[]): Guesser[] {
    return sequences.flatMap((sequence) => {
      const guesser = mayGuess(sequence) ? this.#guesserOf(sequence) : null
      if (guesser === null || guesser.pace.isResting || !guesser.proposer.isPromising) return []
      return [guesser]
    })
  }

  /**
   * The next row of an answer with at most so many guesses; null where it has none. Tokens that went back with a state are fed
   * again and leave less room, so that a state does not go back for ever.
   */
  rowOf(sequence: Sequence, room: number): BatchRow | null {
    const spare = this.#spares.at(-1)
    if (sequence.numAwaited > 0) this.#guessers.get(sequence)?.pace.skip()
    if (spare === undefined || room < 1 || sequence.numAwaited > 0) return null
    const guesser = mayGuess(sequence) ? this.#guesserOf(sequence) : null
    if (guesser === null) return null
    const guesses = this.#guess(guesser, sequence, room)
    if (guesses.length === 0) return null
    this.#spares.pop()
    guesser.isOnItsWay = true
    return sequence.rowWithGuesses(guesses, spare)
  }

  /** Takes back the spare slot of a row that has landed. */
  release(sequence: Sequence, spare: number): void {
    this.#spares.push(spare)
    this.#guessers.get(sequence)!.isOnItsWay = false
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

  #guess(guesser: Guesser, sequence: Sequence, room: number): readonly number[] {
    const { owner, numDrawn } = sequence
    const { proposer, pace } = guesser
    // The row draws one token more than it guesses.
    const most = Math.min(room, owner.request.maxTokens - numDrawn - 1)
    if (most < 1) return []
    const { guessCosts, maxFlights } = this.#runner
    const more = COPY_COST + (maxFlights > 1 ? WAIT_COST : 0)
    const { plain, guessing } = this.#load
    const numGuessing = Math.max(1, guessing)
    const costWith = (n: number) =>
      costOf(guessCosts, plain + n * numGuessing) / costOf(guessCosts, plain)
    const length = pace.next(most, numGuessing / plain, (n) => more + costWith(n))
    const guesses = length === 0 ? [] : proposer.propose(length)
    // A token was drawn that nothing is guessed after.
    if (guesses.length === 0 && guesser.isWaiting) pace.learn(1, 0)
    guesser.isWaiting = false
    // No state is to have consumed the token that ends the answer.
    const end = guesses.findIndex((token) => owner.stopTokens.has(token))
    return end === -1 ? guesses : guesses.slice(0, end)
  }

  #guesserOf(sequence: Sequence): Guesser | null {
    if (this.#open === null) return null
    const { owner, index, drawn } = sequence
    let guesser = this.#guessers.get(sequence)
    if (guesser === undefined) {
      const proposer = this.#open(owner.prompt, owner.request, index)
      guesser = {
        proposer,
        pace: new Pace(),
        numKnown: 0,
        isWaiting: false,
        isOnItsWay: false,
        ...NONE,
      }
      this.#guessers.set(sequence, guesser)
    }
    while (guesser.numKnown < drawn.length) guesser.proposer.add(drawn[guesser.numKnown++]!)
    return guesser
  }
}

/** Cost of a step of so many answer tokens, in steps of one token. */
function costOf(costs: GuessCosts, numTokens: number): number {
  return costs.find(([tokens]) => numTokens <= tokens)?.[1] ?? Number.POSITIVE_INFINITY
}

const NONE = { accepted: 0, rejected: 0 }

/** Nothing is guessed under a grammar, which allows one token at a time, or for a mixture, which has several states. */
function mayGuess({ owner, blend }: Sequence): boolean {
  return owner.rules === null && blend === null
}
