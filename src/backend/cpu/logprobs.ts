/** Log-probabilities of rows of logits by the cpu kernels, whatever device the rows come from. */
import { assert } from '../../errors.ts'
import { check, openNative } from './context.ts'
import { chooseLevel, libraryPath } from './isa.ts'

/** What engine/answer/logprobs.ts computes, to the last few digits of a double; the same bits at every level. */
export function nativeScores(isa?: string) {
  const native = openNative(libraryPath(chooseLevel(isa)))
  return (logits: Float32Array, vocabSize: number, tokens: Int32Array, k: number) => {
    const rows = tokens.length
    assert(logits.length >= rows * vocabSize, `${logits.length} logits of ${rows} rows of ${vocabSize}`)
    const logprobs = new Float64Array(rows)
    const topIds = new Int32Array(rows * k)
    const topLogprobs = new Float64Array(rows * k)
    const status = native.sk_logprobs(logits, rows, vocabSize, tokens, k, logprobs, topIds, topLogprobs)
    check(native, status, 'logprobs')
    return { logprobs, topIds, topLogprobs }
  }
}
