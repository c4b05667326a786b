/** What guesses cost and bring by the clock: it is told of each step when it is planned, launched and over, and of right guesses. */
import type { GuessCosts } from '../../model/runner.ts'
import { Allowance } from './allowance.ts'
import { StepCosts } from './step-costs.ts'

/** Steps without guesses that a number of answers may need until one is timed; those with prompts say nothing. */
const PATIENCE = 2

/** A step on its way. */
export interface LaunchedStep {
  readonly answers: number
  /** Of answers, with guesses, and of prompts. */
  readonly tokens: number
  readonly prompts: number
  readonly hasGuesses: boolean
}

interface Step extends LaunchedStep {
  /** It followed wrong guesses, or waited for guesses that were none. */
  readonly isBecause: boolean
  /** From its planning to its launch, where it waited: in all, and for guesses to be made. */
  readonly planMs: number
  readonly makingMs: number
}

export class Accounts {
  readonly costs: StepCosts
  readonly #allowance = new Allowance()
  readonly #now: () => number
  /** Oldest first; null: it had nothing to do with guesses. */
  readonly #steps: (Step | null)[] = []
  /** Of the step being planned: since when, what guesses took to make, and whether it waited. */
  #plan: { readonly begin: number; makingMs: number; readonly waited: boolean } | null = null
  /** The next step was waited for, or feeds tokens again. */
  #hasWaited = false
  #isAgain = false
  #numUntimed = 0
  /** The last step that is over, while its right guesses are counted. */
  #open: { readonly ms: number; readonly answers: number; right: number } | null = null

  constructor(known: GuessCosts, overlaps: boolean, now: () => number) {
    this.costs = new StepCosts(known, overlaps)
    this.#now = now
  }

  /** Guesses of so many answers may be tried: they have not lost too much of late, and what they save is known. */
  mayGuess(answers: number): boolean {
    this.#settle()
    if (this.#allowance.isSpent) return false
    return this.costs.isKnown(answers) || this.#numUntimed >= PATIENCE
  }

  /** The next step is not launched before the last is over. */
  waits(): void {
    this.#hasWaited = true
  }

  /** Before the first guess of a step. */
  plans(): void {
    this.#plan = { begin: this.#now(), makingMs: 0, waited: this.#hasWaited }
    this.#hasWaited = false
  }

  made<T>(make: () => T): T {
    const begin = this.#now()
    const guesses = make()
    if (this.#plan !== null) this.#plan.makingMs += this.#now() - begin
    return guesses
  }

  /** The step that was planned, if any was. */
  launches(step: LaunchedStep): void {
    const plan = this.#plan
    this.#plan = null
    if (plan === null) {
      this.#steps.push(null)
      return
    }
    const { makingMs, waited } = plan
    const planMs = waited || step.hasGuesses ? this.#now() - plan.begin : 0
    const isBecause = waited || this.#isAgain
    if (step.answers > 0) this.#isAgain = false
    this.#steps.push({ ...step, isBecause, planMs, makingMs })
  }

  /** The oldest is over, so long after the one before or after its launch. */
  lands(ms: number): void {
    this.#settle()
    const step = this.#steps.shift() ?? null
    if (step === null || step.answers === 0 || step.prompts > 0) return
    const { answers, tokens, hasGuesses, isBecause, planMs, makingMs } = step
    const isPlain = tokens === answers && !hasGuesses
    if (!isPlain) this.costs.learnSeveral(tokens, ms + planMs - makingMs)
    if (hasGuesses || isBecause) this.#open = { ms: ms + planMs, answers, right: 0 }
    else if (isPlain) {
      this.costs.learnPlain(answers, ms)
      this.#allowance.earn(ms)
      this.#numUntimed = 0
    }
    if (isPlain && !this.costs.isKnown(answers)) this.#numUntimed++
  }

  /** Of a row's guesses so many were right. */
  learn(guessed: number, right: number): void {
    if (this.#open !== null) this.#open.right += right
    if (right < guessed) this.#isAgain = true
  }

  /** All rows of the last step were looked at. */
  #settle(): void {
    if (this.#open === null) return
    const { ms, answers, right } = this.#open
    this.#open = null
    if (!this.costs.isKnown(answers)) return
    this.#allowance.spend(ms - this.costs.meanMs(answers) * (1 + right / answers))
  }
}
