/** Logits of a token list, of runners that can be waited for; of any: src/model/run/logits.ts. */
import type { Runner, StateData } from '../../src/model/runner.ts'

/** [tokens, V] f32: the logits after each token. */
export function logitsOfAll(runner: Runner, tokens: Int32Array, start: StateData | null = null): Float32Array {
  const V = runner.info.vocabSize
  const values = new Float32Array(tokens.length * V)
  begin(runner, start)
  for (let start = 0; start < tokens.length; start += runner.maxLogits)
    values.set(feed(runner, tokens.subarray(start, start + runner.maxLogits), true), start * V)
  return values
}

/** [V] f32: the logits after the last token. */
export function logitsOfLast(runner: Runner, tokens: Int32Array, start: StateData | null = null): Float32Array {
  const last = tokens.length - 1
  begin(runner, start)
  for (let start = 0; start < last; start += runner.maxTokens)
    feed(runner, tokens.subarray(start, Math.min(last, start + runner.maxTokens)), false)
  return feed(runner, tokens.subarray(last), true)
}

function begin(runner: Runner, start: StateData | null): void {
  runner.clearSlot(0)
  if (start !== null) runner.writeState(0, start).result()
}

function feed(runner: Runner, tokens: Int32Array, allLogits: boolean): Float32Array {
  const [result] = runner.step([{ slot: 0, tokens, samples: [], allLogits }])
  return result?.logits ?? new Float32Array(0)
}
