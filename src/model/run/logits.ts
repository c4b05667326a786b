/** Logits of a token list through a runner of any device, in slot 0, from the state before any token or from a given one. */
import { landed } from '../../backend/flight.ts'
import type { Runner, StateData } from '../runner.ts'

/** f32: [tokens, V] after each token, or [V] after the last. */
export async function logitsOf(
  runner: Runner,
  tokens: Int32Array,
  { isAll = false, start = null }: { isAll?: boolean; start?: StateData | null },
): Promise<Float32Array> {
  const V = runner.info.vocabSize
  const feed = async (part: Int32Array, allLogits: boolean) => {
    const [result] = await landed(runner.launch([{ slot: 0, tokens: part, samples: [], allLogits }]))
    return result?.logits ?? new Float32Array(0)
  }
  runner.clearSlot(0)
  if (start !== null) await landed(runner.writeState(0, start))
  const first = isAll ? 0 : tokens.length - 1
  for (let at = 0; at < first; at += runner.maxTokens)
    await feed(tokens.subarray(at, Math.min(first, at + runner.maxTokens)), false)
  const values = new Float32Array((tokens.length - first) * V)
  for (let at = first; at < tokens.length; at += runner.maxLogits)
    values.set(await feed(tokens.subarray(at, at + runner.maxLogits), true), (at - first) * V)
  return values
}
