/**
 * Measures the loss by quantisation: the logits of a quantised model against the same model in f32, over text that the
 * f32 model draws, or any other. It knows runners, not how weights are quantised.
 */
import { landed } from '../backend/flight.ts'
import type { Runner } from '../model/runner.ts'
import { sampleSpec } from './plain-request.ts'

/** What the comparison needs of a runner. */
export type ScoringRunner = Pick<Runner, 'info' | 'maxLogits' | 'clearSlot' | 'launch'>

export interface QualityRow {
  readonly weightType: string
  readonly weightBytes: number
  /** RMS of the differences, relative to the RMS deviation of the f32 logits from their mean. */
  readonly rmsError: number
  /** Largest difference, relative to the largest f32 logit. */
  readonly maxError: number
  /** Share of tokens after which both have the same best next token. */
  readonly argmaxAgreement: number
  /** Mean Kullback-Leibler divergence from the f32 distribution at temperature 1, in nats. */
  readonly divergence: number
  /** e to the mean loss of the texts' next tokens; NaN where no token follows another. */
  readonly perplexity: number
  /** By how much that is higher than with f32 weights: a share of it. */
  readonly perplexityLoss: number
}

/**
 * One text per prompt, with `tokens` in total including the prompts, drawn at temperature 1 by a runner that has a slot
 * for each. The same seed gives the same texts.
 */
export function drawTexts(runner: Runner, prompts: readonly Int32Array[], tokens: number, seed = 1n): Int32Array[] {
  const length = Math.ceil(tokens / prompts.length)
  const texts = prompts.map((prompt) => [...prompt.subarray(0, length)])
  for (const [slot, text] of texts.entries()) {
    runner.clearSlot(slot)
    const fed = Int32Array.from(text.slice(0, -1))
    for (let start = 0; start < fed.length; start += runner.maxTokens)
      runner.step([{ slot, tokens: fed.slice(start, start + runner.maxTokens), samples: [] }])
  }
  for (let position = 0; texts.some((text) => text.length < length); position++) {
    const growing = [...texts.entries()].filter(([, text]) => text.length < length)
    const rows = growing.map(([slot, text]) => ({
      slot,
      tokens: Int32Array.of(text.at(-1)!),
      samples: [sampleSpec({ slot, position, seed, stream: slot })],
    }))
    for (const [i, { drawn }] of runner.step(rows).entries()) growing[i]![1].push(drawn[0]!.token)
  }
  return texts.map((text) => Int32Array.from(text))
}

/** Feeds every text to the exact runner and to the others, and compares their logits after each token. */
export async function compareLogits(
  exact: ScoringRunner,
  others: readonly ScoringRunner[],
  texts: readonly Int32Array[],
  onProgress: (doneTokens: number, totalTokens: number) => void = () => {},
): Promise<QualityRow[]> {
  const totals = others.map(() => new Totals())
  const totalTokens = texts.reduce((sum, text) => sum + text.length, 0)
  const chunk = Math.min(exact.maxLogits, ...others.map(({ maxLogits }) => maxLogits))
  let done = 0
  for (const text of texts) {
    for (const runner of [exact, ...others]) runner.clearSlot(0)
    for (let start = 0; start < text.length; start += chunk) {
      const tokens = text.subarray(start, start + chunk)
      const wanted = (await positionsOf(exact, tokens)).map(peakOf)
      for (const [i, runner] of others.entries())
        for (const [t, logits] of (await positionsOf(runner, tokens)).entries())
          totals[i]!.add(wanted[t]!, peakOf(logits), text[start + t + 1])
      done += tokens.length
      onProgress(done, totalTokens)
    }
  }
  return others.map(({ info }, i) => {
    const { weightType, weightBytes } = info
    return { weightType, weightBytes, ...totals[i]!.figures() }
  })
}

async function positionsOf(runner: ScoringRunner, tokens: Int32Array): Promise<Float32Array[]> {
  const V = runner.info.vocabSize
  const [result] = await landed(runner.launch([{ slot: 0, tokens, samples: [], allLogits: true }]))
  return Array.from(tokens, (_, t) => result!.logits!.subarray(t * V, (t + 1) * V))
}

/** Sums over all positions of all texts, in f64. */
class Totals {
  #positions = 0
  #sameBest = 0
  #divergence = 0
  #squaredDifference = 0
  #squaredSize = 0
  #largestDifference = 0
  #largest = 0
  #followed = 0
  #exactLoss = 0
  #loss = 0

  /** `next`: the token that follows in the text. */
  add(exact: Peak, found: Peak, next: number | undefined): void {
    if (next !== undefined) {
      this.#followed++
      this.#exactLoss += exact.logSum - exact.logits[next]!
      this.#loss += found.logSum - found.logits[next]!
    }
    const [wanted, actual] = [exact.logits, found.logits]
    let [squared, largest, divergence] = [0, 0, 0]
    for (let i = 0; i < wanted.length; i++) {
      const difference = wanted[i]! - actual[i]!
      squared += difference * difference
      largest = Math.max(largest, Math.abs(difference))
      divergence += exact.probabilities[i]! * difference
    }
    this.#squaredDifference += squared
    this.#largestDifference = Math.max(this.#largestDifference, largest)
    this.#divergence += divergence + found.logSum - exact.logSum
    this.#squaredSize += exact.squaredSize
    this.#largest = Math.max(this.#largest, exact.size)
    this.#sameBest += exact.best === found.best ? 1 : 0
    this.#positions++
  }

  figures(): Omit<QualityRow, 'weightType' | 'weightBytes'> {
    return {
      rmsError: Math.sqrt(this.#squaredDifference / this.#squaredSize),
      maxError: this.#largestDifference / this.#largest,
      argmaxAgreement: this.#sameBest / this.#positions,
      divergence: this.#divergence / this.#positions,
      perplexity: Math.exp(this.#loss / this.#followed),
      perplexityLoss: Math.expm1((this.#loss - this.#exactLoss) / this.#followed),
    }
  }
}

/** One position's logits, and the values that are compared. */
interface Peak {
  readonly logits: Float32Array
  readonly probabilities: Float64Array
  readonly best: number
  /** Logarithm of the sum of all exponentials. */
  readonly logSum: number
  /** Largest magnitude. */
  readonly size: number
  /** Σ (logit − mean)² */
  readonly squaredSize: number
}

function peakOf(logits: Float32Array): Peak {
  const V = logits.length
  let [best, size, total, squares] = [0, 0, 0, 0]
  for (let i = 0; i < V; i++) {
    const x = logits[i]!
    if (x > logits[best]!) best = i
    size = Math.max(size, Math.abs(x))
    total += x
    squares += x * x
  }
  const probabilities = new Float64Array(V)
  let sum = 0
  for (let i = 0; i < V; i++) sum += probabilities[i] = Math.exp(logits[i]! - logits[best]!)
  for (let i = 0; i < V; i++) probabilities[i]! /= sum
  const logSum = logits[best]! + Math.log(sum)
  return { logits, probabilities, best, logSum, size, squaredSize: squares - total ** 2 / V }
}
