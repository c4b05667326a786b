/**
 * Which rows of a step have guesses, and how many. A row with guesses feeds several tokens and draws at each of them; a draw
 * that differs from the guess is the one that counts, and the state goes back to what it was before the row. Answers are
 * what they are without it (docs/speculation.md). What became of the guesses is outcomes.ts.
 */
import { assert } from '../../errors.ts'
import type { BatchRow, Guesses, Runner } from '../../model/runner.ts'
import type { Sequence } from '../sequence.ts'
import type { GuessesBy } from '../stats.ts'
import { GRAMMAR } from './grammar-text.ts'
import { type Asking, Odds, share } from './pace.ts'
import type { Proposer, ProposerSource } from './proposer.ts'
import { StepTimes } from './step-times.ts'

/** One proposer of an answer, and how it fares. */
interface Guesser {
  readonly source: ProposerSource
  readonly proposer: Proposer
  readonly odds: Odds
  /** Right guesses since the last wrong or missing one. */
  run: number
  accepted: number
  rejected: number
}

interface Guessed {
  readonly guessers: readonly Guesser[]
  /** Tokens of the answer that the proposers know. */
  numKnown: number
  /** Who guesses in the row that is being planned, and how much at most. */
  asked: Asked | null
  /** Whose guesses are on their way. */
  onItsWay: Guesser | null
}

interface Asked {
  readonly guesser: Guesser
  readonly length: number
}

const CERTAIN = [GRAMMAR]

export class Speculation {
  readonly counters = {
    guessedTokens: 0,
    acceptedTokens: 0,
    grammarGuessed: 0,
    grammarAccepted: 0,
    predictionGuessed: 0,
    predictionAccepted: 0,
    lookupGuessed: 0,
    lookupAccepted: 0,
    draftGuessed: 0,
    draftAccepted: 0,
  }
  readonly #runner: Runner
  readonly #sources: readonly ProposerSource[]
  /** Free places for states: one of each row, and further ones. */
  readonly #spares: number[]
  readonly #kept: number[]
  readonly #guessed = new WeakMap<Sequence, Guessed>()
  /** By source: of the answer that learned last. */
  readonly #lastOdds = new Map<ProposerSource, Odds>()
  readonly #times: StepTimes
  readonly #now: () => number
  /** The last step that was planned: its answers, tokens and guesses, and how long these took to make. */
  #step = { answers: 1, tokens: 1, guesses: 0, makingMs: 0 }
  /** Of the step being planned: how many guesses apart states are kept. */
  #every = 1
  /** Of the last step, once it is asked for. */
  #price: number | null = null

  /** Without sources, or a runner that draws after guesses, nothing is guessed. */
  constructor(runner: Runner, sources: readonly ProposerSource[], now: () => number) {
    this.#runner = runner
    this.#now = now
    this.#sources = runner.numSpares > 0 ? sources : []
    this.#spares = Array.from({ length: runner.numSpares }, (_, i) => i)
    this.#kept = Array.from({ length: runner.numKept }, (_, i) => runner.numSpares + i)
    this.#times = new StepTimes(runner.guessCosts)
  }

  /**
   * Decides which of these answers have guesses in the step being planned, which has so many tokens without any, and slots for
   * so many answers. Their rows are rowOf.
   */
  plan(sequences: readonly Sequence[], numTokens: number, numSlots: number): void {
    const tokens = sequences.reduce((sum, { numExtra }) => sum + numExtra, numTokens)
    this.#step = { answers: numTokens, tokens, guesses: 0, makingMs: 0 }
    this.#price = null
    if (numTokens === 0 || this.#isSilent(sequences)) return
    const settled = sequences.filter(({ numAwaited }) => numAwaited === 0)
    const asked = this.#ask(settled, numTokens, tokens, numSlots)
    this.#every = this.#runner.keptEvery([...asked.values()].reduce((sum, { length }) => sum + length, tokens))
    for (const sequence of sequences) {
      const guessed = this.#guessedOf(sequence)
      if (guessed === null) continue
      guessed.asked = asked.get(sequence) ?? null
      if (guessed.asked !== null) guessed.asked.guesser.proposer.expect?.(guessed.asked.length)
      else for (const guesser of guessed.guessers) this.#rested(guesser)
    }
  }

  /**
   * Whether the next step is planned when the last has landed: guesses need to know what was drawn, and answers that go on
   * meanwhile would make two steps of one. Worth it where something is to be guessed for some of them. A step with guesses is
   * waited for even if their requests have gone: what is learned of it is learned of the last step that was planned.
   */
  waitsFor(sequences: readonly Sequence[], numSlots: number): boolean {
    if (this.#spares.length < this.#runner.numSpares) return true
    if (this.#isSilent(sequences)) return false
    if (sequences.every(({ numAwaited }) => numAwaited === 0)) return false
    const numTokens = sequences.reduce((sum, { owner }) => sum + owner.width, 0)
    return this.#ask(sequences, numTokens, numTokens, numSlots).size > 0
  }

  /** Who guesses how much for which of these: by each source in turn, for those without guesses of the sources before it. */
  #ask(
    sequences: readonly Sequence[],
    answers: number,
    tokens: number,
    numSlots: number,
  ): ReadonlyMap<Sequence, Asked> {
    const asked = new Map<Sequence, Asked>()
    const { maxTokens, maxLogits, maxSamples } = this.#runner
    // The unit is a step without guesses, so one of that size must be known.
    if (this.#times.needsPlain(answers)) return asked
    const costOf = this.#times.costsOf(answers)
    const free = Math.floor((maxTokens - tokens) / 4)
    let room = Math.min(free, maxLogits - numSlots, maxSamples - numSlots)
    let total = tokens
    let expected = 0
    for (const source of this.#sources) {
      if (answers > (source.mostAnswers ?? answers)) continue
      const making = (source.guessMs ?? 0) / Math.max(this.#times.plainMs(answers), Number.MIN_VALUE)
      const spares = this.#spares.length - asked.size
      const able = sequences.flatMap((sequence) => {
        const guesser = asked.has(sequence) ? null : this.#guesserOf(sequence, source)
        return guesser?.proposer.isPromising ? [{ sequence, guesser }] : []
      })
      const asking = able.map(({ sequence, guesser }): Asking => {
        const { owner, numDrawn, numAwaited, numExtra } = sequence
        return {
          odds: guesser.odds,
          run: guesser.run,
          // The row draws one token more than it guesses.
          most: owner.request.maxTokens - numDrawn - numAwaited - 1,
          extra: numExtra,
          isAhead: numAwaited > 0 && isFree(source),
        }
      })
      const keptRow = Math.min(this.#runner.keptRow, 2 + this.#kept.length)
      const step = { answers, tokens: total, expected, costOf, making, room, spares, keptRow }
      const shared = share(step, asking)
      const lengths: number[] = [...shared.lengths]
      expected = shared.expected
      if (!isFree(source) && !lengths.some((length) => length > 0)) {
        let left = Math.min(spares, room)
        for (const [i, { odds, most }] of asking.entries())
          if (most > 0 && left > 0 && odds.mayTry() && Number.isFinite(costOf(total + i + 1))) {
            lengths[i] = 1
            left--
          }
      }
      for (const [i, { sequence, guesser }] of able.entries()) {
        const length = lengths[i]!
        if (length === 0) continue
        asked.set(sequence, { guesser, length })
        room -= length
        total += length
      }
    }
    return asked
  }

  #guesserOf(sequence: Sequence, source: ProposerSource): Guesser | null {
    return this.#guessedOf(sequence)?.guessers.find((one) => one.source === source) ?? null
  }

  /** Nobody guesses any of these. Few requests have predictions, and often nothing else is guessed from: then no more is asked of hundreds. */
  #isSilent(sequences: readonly Sequence[]): boolean {
    return this.#sources.every(
      ({ name }) => name === 'prediction' && sequences.every(({ owner }) => owner.request.prediction === undefined),
    )
  }

  /** The next row of an answer if it has guesses, with at most so many tokens more than one; else null. */
  rowOf(sequence: Sequence, spareTokens: number): BatchRow | null {
    const guessed = this.#guessed.get(sequence)
    if (guessed === undefined || guessed.asked === null) return null
    const { guesser, length } = guessed.asked
    guessed.asked = null
    const begin = this.#now()
    const guesses = guesser.proposer.propose(length)
    this.#step.makingMs += this.#now() - begin
    // No state is to have consumed the token that ends the answer.
    const end = guesses.findIndex((token) => sequence.owner.stopTokens.has(token))
    const own = end === -1 ? guesses : guesses.slice(0, end)
    if (own.length === 0 || own.length + sequence.numExtra > spareTokens) return null
    const spare = this.#spares.pop()
    assert(spare !== undefined, 'more rows with guesses than places for their states')
    const numMore = Math.ceil(own.length / this.#every) - 1
    const isShort = 1 + sequence.numExtra + own.length <= this.#runner.keptRow
    const every = isShort && numMore <= this.#kept.length ? this.#every : 0
    const spares = every > 0 ? [spare, ...this.#kept.splice(this.#kept.length - numMore)] : [spare]
    guessed.onItsWay = guesser
    this.#step.tokens += own.length
    this.#step.guesses += own.length
    return sequence.rowWithGuesses(own, spares, every)
  }

  /** Takes back the places of a row that has landed. */
  release(sequence: Sequence, { spares: [spare, ...more] }: Guesses): void {
    this.#spares.push(spare!)
    this.#kept.push(...more)
    this.#guessed.get(sequence)!.onItsWay = null
  }

  /** Of the guesses of the row that has landed, the first `right` were right. */
  learn(sequence: Sequence, guessed: number, right: number): void {
    const guesser = this.#guessed.get(sequence)?.onItsWay
    assert(guesser != null, 'guesses of an answer that has none')
    if (!isFree(guesser.source)) {
      for (let i = 0; i < Math.min(guessed, right + 1); i++) this.#fared(guesser, i < right)
      this.#price ??= this.#priceOfGuess()
      guesser.odds.tried(guessed * this.#price - right)
    }
    this.#count(guesser, guessed, right)
  }

  /** Tokens that come next without a draw, once the answer's last token is known, until the answer ends; each counts as it is taken. */
  *certainOf(sequence: Sequence): Generator<number> {
    for (const guesser of this.#guessedOf(sequence)?.guessers ?? [])
      for (const token of guesser.proposer.certain?.() ?? []) {
        if (sequence.finish !== null) return
        this.#count(guesser, 1, 1)
        yield token
      }
  }

  #count(guesser: Guesser, guessed: number, right: number): void {
    guesser.accepted += right
    guesser.rejected += guessed - right
    const { name } = guesser.source
    for (const by of [`${name}Guessed`, 'guessedTokens'] as const) this.counters[by] += guessed
    for (const by of [`${name}Accepted`, 'acceptedTokens'] as const) this.counters[by] += right
  }

  /** Tokens that a guess of the last step cost. */
  #priceOfGuess(): number {
    const { answers, tokens, guesses, makingMs } = this.#step
    const making = makingMs / Math.max(this.#times.plainMs(answers), Number.MIN_VALUE)
    const cost = this.#times.costsOf(answers)(tokens)
    return ((cost - 1 + making) * answers) / guesses
  }

  #rested(guesser: Guesser): void {
    guesser.odds.rested()
    if (!isFree(guesser.source)) guesser.run = 0
  }

  #fared(guesser: Guesser, isRight: boolean): void {
    guesser.odds.learn(guesser.run, isRight)
    guesser.run = isRight ? guesser.run + 1 : 0
    this.#lastOdds.set(guesser.source, guesser.odds)
  }

  /**
   * How long a step of so many answers and no prompts took from its launch to its end, and how long before that the step before
   * it had ended. Where steps follow each other without a gap, those with guesses make one.
   */
  learnStep(answers: number, tokens: number, hasGuesses: boolean, ms: number, gapMs: number): void {
    const hasGap = hasGuesses || this.#runner.maxFlights === 1
    // What has guesses is always the last step.
    const making = hasGuesses ? this.#step.makingMs : 0
    this.#times.learn(answers, tokens, hasGuesses, hasGap ? ms + gapMs - making : ms)
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

  /** Under a grammar what is certain, and no guesses: it has a mask for one token at a time. A mixture has several states. */
  #sourcesOf({ owner, blend }: Sequence): readonly ProposerSource[] {
    if (owner.rules !== null) return CERTAIN
    return blend === null ? this.#sources : []
  }

  /** Null where nothing is guessed. */
  #guessedOf(sequence: Sequence): Guessed | null {
    const sources = this.#sourcesOf(sequence)
    if (sources.length === 0) return null
    const { owner, index, drawn, matcher } = sequence
    let guessed = this.#guessed.get(sequence)
    if (guessed === undefined) {
      const guessers = sources.flatMap((source): Guesser[] => {
        const proposer = source.open(owner.prompt, owner.request, index, { ...sequence.draw }, matcher)
        if (proposer === null) return []
        return [{ source, proposer, odds: this.#oddsOf(source), run: 0, accepted: 0, rejected: 0 }]
      })
      guessed = { guessers, numKnown: 0, asked: null, onItsWay: null }
      this.#guessed.set(sequence, guessed)
    }
    while (guessed.numKnown < drawn.length) {
      const token = drawn[guessed.numKnown++]!
      for (const guesser of guessed.guessers) {
        this.#watch(guesser, token)
        guesser.proposer.add(token)
      }
    }
    return guessed
  }

  /** What costs nothing to guess is compared with every token that is drawn, so it need not be tried to know how it fares. */
  #watch(guesser: Guesser, token: number): void {
    const { source, proposer } = guesser
    if (!isFree(source)) return
    const [guess] = proposer.isPromising ? proposer.propose(1) : []
    if (guess === undefined) guesser.run = 0
    else this.#fared(guesser, guess === token)
  }

  #oddsOf(source: ProposerSource): Odds {
    const last = this.#lastOdds.get(source)
    const odds = last === undefined ? new Odds() : source.isAlike ? last : Odds.after(last)
    this.#lastOdds.set(source, odds)
    return odds
  }
}

/** Its guesses take no time that counts. */
function isFree({ guessMs }: ProposerSource): boolean {
  return guessMs === undefined
}
