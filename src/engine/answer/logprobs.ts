/**
 * Log-probabilities on the host: of a prompt's tokens from the logits of its rows, and the bytes that replies carry
 * with each token. Those of drawn tokens come from the device. Knows nothing of requests.
 */
import type { TokenLogprob } from '../../model/runner.ts'
import type { TokenText } from '../messages.ts'
import type { TokenBytes } from './answer-text.ts'

/**
 * log softmax of row `row` of `logits` [rows, vocabSize] at `token`, and the k best; ties go to the smaller id.
 * Null when the row is not finite (a NaN or +∞ in it); a single −∞ is a probability of zero.
 */
export function logprobsOf(
  logits: Float32Array,
  row: number,
  vocabSize: number,
  token: number,
  k: number,
): TokenLogprob | null {
  const values = logits.subarray(row * vocabSize, (row + 1) * vocabSize)
  // Loops by index: a prompt has a row for each of its tokens, and all of it is on the engine's thread.
  let max = -Infinity
  for (let id = 0; id < vocabSize; id++) if (values[id]! > max) max = values[id]!
  if (!Number.isFinite(max)) return null
  let sum = 0
  for (let id = 0; id < vocabSize; id++) sum += Math.exp(values[id]! - max)
  if (Number.isNaN(sum)) return null
  const logSum = max + Math.log(sum)
  const top = bestTokens(values, k).map((id) => ({ token: id, logprob: values[id]! - logSum }))
  return { token, logprob: values[token]! - logSum, top }
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

export function withBytes(logprob: TokenLogprob, tokenBytes: TokenBytes): TokenText {
  return {
    ...logprob,
    bytes: tokenBytes.bytesOf(logprob.token),
    topBytes: logprob.top.map((entry) => tokenBytes.bytesOf(entry.token)),
  }
}
