/**
 * Log-probabilities on the host: of a prompt's tokens from the logits of its rows, and the bytes that replies carry
 * with each token. Those of drawn tokens come from the device. Knows nothing of requests.
 */
import { SkeinError } from '../../errors.ts'
import type { TokenLogprob } from '../../model/runner.ts'
import type { TokenText } from '../messages.ts'
import type { TokenBytes } from './answer-text.ts'

/** Of each row of logits. All of a row are NaN when it is not finite (a NaN or +∞ in it); a single −∞ is a probability of zero. */
interface Scores {
  /** Of the row's token: [rows]. */
  readonly logprobs: Float64Array
  /** Best first; ties go to the smaller id: [rows, k]. */
  readonly topIds: Int32Array
  readonly topLogprobs: Float64Array
}

/** log softmax of the rows of `logits` [rows, vocabSize], each at its token, and the k best of each. */
export type ScoreRows = (logits: Float32Array, vocabSize: number, tokens: Int32Array, k: number) => Scores

/** The plain way, for where there are no kernels; kernels/cpu/logprobs.cpp is another. */
export function scoreRows(logits: Float32Array, vocabSize: number, tokens: Int32Array, k: number): Scores {
  const scores = {
    logprobs: new Float64Array(tokens.length),
    topIds: new Int32Array(tokens.length * k),
    topLogprobs: new Float64Array(tokens.length * k),
  }
  for (const [row, token] of tokens.entries()) {
    const values = logits.subarray(row * vocabSize, (row + 1) * vocabSize)
    const logSum = logSumOf(values)
    scores.logprobs[row] = values[token]! - logSum
    for (const [i, id] of bestTokens(values, k).entries()) {
      scores.topIds[row * k + i] = id
      scores.topLogprobs[row * k + i] = values[id]! - logSum
    }
  }
  return scores
}

/** The log-probabilities of one row; null when the row was not finite. */
export function logprobOf({ logprobs, topIds, topLogprobs }: Scores, row: number, token: number): TokenLogprob | null {
  const logprob = logprobs[row]!
  if (Number.isNaN(logprob)) return null
  const k = topIds.length / logprobs.length
  const top = Array.from({ length: k }, (_, i) => {
    const at = row * k + i
    return { token: topIds[at]!, logprob: topLogprobs[at]! }
  })
  return { token, logprob, top }
}

/** What a request is told of a row that was not. */
export function notFinite(where: string): SkeinError {
  const message = `the model's output was not finite ${where}; the answer was dropped. Other requests are not affected`
  return new SkeinError('kernel_failed', message)
}

/** log Σ e^value; NaN when it is not finite. Loops by index: a prompt has a row for each of its tokens. */
function logSumOf(values: Float32Array): number {
  let max = -Infinity
  for (let id = 0; id < values.length; id++) if (values[id]! > max) max = values[id]!
  let sum = 0
  // NaN where the largest is infinite.
  for (let id = 0; id < values.length; id++) sum += Math.exp(values[id]! - max)
  return max + Math.log(sum)
}

/** Ids of the k largest values, best first. k is small, so an insertion list beats a heap. */
function bestTokens(values: Float32Array, k: number): number[] {
  const best: number[] = []
  if (k === 0) return best
  // What a value must exceed to be among them.
  let least = -Infinity
  for (let id = 0; id < values.length; id++) {
    const value = values[id]!
    if (value <= least && best.length === k) continue
    let at = Math.min(best.length, k - 1)
    for (; at > 0 && value > values[best[at - 1]!]!; at--) best[at] = best[at - 1]!
    best[at] = id
    least = values[best.at(-1)!]!
  }
  return best
}

/** Of each vocabulary, the tokens that were told: one array for a token, or those of 20 alternatives would be half of a step's garbage. */
const told = new WeakMap<TokenBytes, Map<number, Uint8Array>>()

export function withBytes(logprob: TokenLogprob, tokenBytes: TokenBytes): TokenText {
  let known = told.get(tokenBytes)
  if (known === undefined) {
    known = new Map()
    told.set(tokenBytes, known)
  }
  const bytesOf = (token: number) => {
    let bytes = known.get(token)
    if (bytes === undefined) {
      bytes = tokenBytes.bytesOf(token)
      known.set(token, bytes)
    }
    return bytes
  }
  return { ...logprob, bytes: bytesOf(logprob.token), topBytes: logprob.top.map(({ token }) => bytesOf(token)) }
}
