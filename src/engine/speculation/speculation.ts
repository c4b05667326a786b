/**
 * Which rows of a step have guesses, and how many. A row with guesses feeds several tokens and draws at each of them; a draw
 * that differs from the guess is the one that counts, and the state goes back to what it was before the row. Answers are
 * what they are without it (docs/speculation.md). What became of the guesses is outcomes.ts.
 */
import { assert } from '../../errors.ts'
import type { BatchRow, GuessCosts, Runner } from '../../model/runner.ts'
import type { Sequence } from '../sequence.ts'
import type { GuessesBy } from '../stats.ts'
import { Pace } from './pace.ts'
import type { Proposer, ProposerSource } from './proposer.ts'

/** Costs of guesses beside their tokens, in plain steps: copying states and, where steps overlap, making the next one wait. */
const COPY_COST = 0.03
const WAIT_COST = 0.07
/** The share of a step's answers that must have a guess before it pays that the device waits for the host. */
const WORTH_WAITING = 1 / 8
/** How much each step's time counts among those before. */
const WEIGHT = 0.1

/** One proposer of an answer, and how it fares. */
interface Guesser {
  readonly source: ProposerSource
  readonly proposer: Proposer
  readonly pace: Pace
  /** The next row waits for a token that promised to be followed by its guess. */
  isWaiting: boolean
  accepted: number
  rejected: number
}

interface Guessed {
  readonly guessers: readonly Guesser[]
  /** Tokens of the answer that the proposers know. */
  numKnown: number
  /** Who guesses in the row that is being planned, and how much at most. */
  asked: { readonly guesser: Guesser; readonly length: number } | null
  /** Whose guesses are on their way. */
  onItsWay: Guesser | null
}

export class Speculation {
  readonly counters = {
    guessedTokens: 0,
    acceptedTokens: 0,
    predictionGuessed: 0,
    predictionAccepted: 0,
    lookupGuessed: 0,
    lookupAccepted: 0,
    draftGuessed: 0,
    draftAccepted: 0,
  }
  readonly #runner: Runner
  readonly #sources: readonly ProposerSource[]
  readonly #spares: number[]
  readonly #guessed = new WeakMap<Sequence, Guessed>()
  /** Of sources whose answers fare alike, that of the answer which learned last. */
  readonly #lastPaces = new Map<ProposerSource, Pace>()
  /** The step being planned: its tokens of answers without guesses, and how many answers may have guesses. */
  #load = { plain: 1, guessing: 1 }
  /** Answers of the step that is looked at. */
  #numAnswers = 0
  /** Milliseconds of a step of one token, going by the last ones; 0: none is known. */
  #stepMs = 0

  /** Without sources, or a runner that draws after guesses, nothing is guessed. */
  constructor(runner: Runner, sources: readonly ProposerSource[]) {
    this.#runner = runner
    this.#sources = runner.numSpares > 0 ? sources : []
    this.#spares = Array.from({ length: runner.numSpares }, (_, i) => i)
  }

  /**
   * Decides which of these answers have guesses in the step being planned, which has so many tokens without any, and slots for
   * so many answers: as many guesses as pay if they are right. Their rows are rowOf.
   */
  plan(sequences: readonly Sequence[], numTokens: number, numSlots: number): void {
    if (numTokens === 0 || this.#isSilent(sequences)) return
    this.#numAnswers = sequences.length
    this.#load = { plain: numTokens, guessing: this.#promising(sequences).length }
    let room = this.#room(numTokens, numSlots)
    let numSpares = this.#spares.length
    for (const sequence of sequences) {
      const guessed = this.#guessedOf(sequence)
      if (guessed === null) continue
      // Tokens that went back with a state are fed again and leave less room, so that a state does not go back for ever.
      room -= sequence.numExtra
      const most = numSpares === 0 || sequence.numAwaited > 0 ? 0 : room
      guessed.asked = this.#ask(guessed, sequence, most)
      if (guessed.asked === null) continue
      room -= guessed.asked.length
      numSpares--
    }
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
    if (this.#isSilent(sequences)) return false
    if (sequences.every(({ numAwaited }) => numAwaited === 0)) return false
    if (sequences.some((one) => this.#guessed.get(one)?.onItsWay)) return true
    this.#numAnswers = sequences.length
    const promising = this.#promising(sequences)
    if (promising.length === 0 || promising.length < sequences.length * WORTH_WAITING) return false
    const numTokens = sequences.reduce((sum, { owner }) => sum + owner.width, 0)
    if (this.#room(numTokens, numSlots) < 1) return false
    for (const guesser of promising) guesser.isWaiting = true
    return true
  }

  /** Nobody guesses any of these. Few requests have predictions, and often nothing else is guessed from: then no more is asked of hundreds. */
  #isSilent(sequences: readonly Sequence[]): boolean {
    return this.#sources.every(
      ({ name }) => name === 'prediction' && sequences.every(({ owner }) => owner.request.prediction === undefined),
    )
  }

  /** Of each answer for which something may be guessed, who would. */
  #promising(sequences: readonly Sequence[]): Guesser[] {
    return sequences.flatMap((sequence) => {
      const { guessers = [] } = this.#guessedOf(sequence) ?? {}
      const first = guessers.find((one) => !one.pace.isResting && this.#isPromising(one))
      return first ?? []
    })
  }

  #isPromising({ source, proposer }: Guesser): boolean {
    return this.#numAnswers <= (source.mostAnswers ?? this.#numAnswers) && proposer.isPromising
  }

  /** Who guesses in an answer's next row: the first whose guesses pay. Those before it have one row more without. */
  #ask(guessed: Guessed, { owner, numDrawn }: Sequence, room: number): Guessed['asked'] {
    // The row draws one token more than it guesses.
    const most = Math.min(room, owner.request.maxTokens - numDrawn - 1)
    for (const guesser of guessed.guessers) {
      const { pace, proposer, isWaiting } = guesser
      guesser.isWaiting = false
      const isPromising = this.#isPromising(guesser)
      if (most < 1 || !isPromising) {
        // A token was drawn that nothing is guessed after.
        if (isWaiting && !isPromising) pace.learn(1, 0)
        pace.skip()
        continue
      }
      const length = this.#lengthOf(guesser, most)
      if (length === 0) continue
      proposer.expect?.(length)
      return { guesser, length }
    }
    return null
  }

  #lengthOf({ pace, source }: Guesser, most: number): number {
    const { guessCosts, maxFlights } = this.#runner
    const { plain, guessing } = this.#load
    const numGuessing = Math.max(1, guessing)
    const plainCost = costOf(guessCosts, plain)
    const more = COPY_COST + (maxFlights > 1 ? WAIT_COST : 0)
    const making = (source.guessMs ?? 0) / Math.max(this.#stepMs * plainCost, Number.MIN_VALUE)
    return pace.next(
      most,
      numGuessing / plain,
      (n) => more + n * making + costOf(guessCosts, plain + n * numGuessing) / plainCost,
    )
  }

  /** The next row of an answer if it has guesses, with at most so many tokens more than one; else null. */
  rowOf(sequence: Sequence, spareTokens: number): BatchRow | null {
    const guessed = this.#guessed.get(sequence)
    if (guessed === undefined || guessed.asked === null) return null
    const { guesser, length } = guessed.asked
    guessed.asked = null
    const guesses = guesser.proposer.propose(length)
    // No state is to have consumed the token that ends the answer.
    const end = guesses.findIndex((token) => sequence.owner.stopTokens.has(token))
    const own = end === -1 ? guesses : guesses.slice(0, end)
    if (own.length === 0 || own.length + sequence.numExtra > spareTokens) return null
    const spare = this.#spares.pop()
    assert(spare !== undefined, 'more rows with guesses than places for their states')
    guessed.onItsWay = guesser
    return sequence.rowWithGuesses(own, spare)
  }

  /** Takes back the spare slot of a row that has landed. */
  release(sequence: Sequence, spare: number): void {
    this.#spares.push(spare)
    this.#guessed.get(sequence)!.onItsWay = null
  }

  /** Of the guesses of the row that has landed, the first `right` were right. */
  learn(sequence: Sequence, guessed: number, right: number): void {
    const guesser = this.#guessed.get(sequence)?.onItsWay
    assert(guesser != null, 'guesses of an answer that has none')
    guesser.pace.learn(guessed, right)
    if (guesser.source.isAlike) this.#lastPaces.set(guesser.source, guesser.pace)
    guesser.accepted += right
    guesser.rejected += guessed - right
    const { name } = guesser.source
    for (const by of [`${name}Guessed`, 'guessedTokens'] as const) this.counters[by] += guessed
    for (const by of [`${name}Accepted`, 'acceptedTokens'] as const) this.counters[by] += right
  }

  /** How long a step took that had so many tokens of answers, guesses among them, and so many of prompts. */
  learnStep(ms: number, answers: number, prompts: number): void {
    const cost = costOf(this.#runner.guessCosts, answers)
    if (prompts > 0 || answers === 0 || !Number.isFinite(cost)) return
    const own = ms / cost
    this.#stepMs = this.#stepMs === 0 ? own : this.#stepMs + WEIGHT * (own - this.#stepMs)
  }

  /** What became of an answer's guesses; nothing where there were none. */
  countsOf(sequence: Sequence): { readonly guesses?: GuessesBy } {
    const { guessers = [] } = this.#guessed.get(sequence) ?? {}
    const counts = guessers.flatMap(({ source, accepted, rejected }) =>
      accepted + rejected === 0 ? [] : [[source.name, { accepted, rejected }] as const],
    )
    return counts.length === 0 ? {} : { guesses: Object.fromEntries(counts) }
  }

  /** The answer is over, or nobody hears it any more. */
  close(sequence: Sequence): void {
    for (const { proposer } of this.#guessed.get(sequence)?.guessers ?? []) proposer.close?.()
  }

  /** Null where nothing is guessed. */
  #guessedOf(sequence: Sequence): Guessed | null {
    if (this.#sources.length === 0 || !mayGuess(sequence)) return null
    const { owner, index, drawn } = sequence
    let guessed = this.#guessed.get(sequence)
    if (guessed === undefined) {
      const guessers = this.#sources.flatMap((source): Guesser[] => {
        const proposer = source.open(owner.prompt, owner.request, index, { ...sequence.draw })
        if (proposer === null) return []
        const last = this.#lastPaces.get(source)
        const pace = last === undefined ? new Pace() : Pace.after(last)
        return [{ source, proposer, pace, isWaiting: false, accepted: 0, rejected: 0 }]
      })
      guessed = { guessers, numKnown: 0, asked: null, onItsWay: null }
      this.#guessed.set(sequence, guessed)
    }
    while (guessed.numKnown < drawn.length) {
      const token = drawn[guessed.numKnown++]!
      for (const { proposer } of guessed.guessers) proposer.add(token)
    }
    return guessed
  }
}

/** Cost of a step of so many answer tokens, in steps of one token. */
function costOf(costs: GuessCosts, numTokens: number): number {
  return costs.find(([tokens]) => numTokens <= tokens)?.[1] ?? Number.POSITIVE_INFINITY
}

/** Nothing is guessed under a grammar, which allows one token at a time, or for a mixture, which has several states. */
function mayGuess({ owner, blend }: Sequence): boolean {
  return owner.rules === null && blend === null
}
