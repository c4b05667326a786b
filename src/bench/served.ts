/**
 * What the engine makes of a runner: N answers generated at once through an engine client, the loop, the stop decisions
 * and the events included, without HTTP. The time begins and ends while all of them are being generated.
 */
import type { EngineClient } from '../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../engine/messages.ts'

/** Tokens of an answer before the time begins, while it runs, and after it has ended. */
const LEAD = 16
const TAIL = 4

/** Tokens a second of `batch` answers at once, over at least `minSteps` tokens of each. */
export async function benchServed(
  client: EngineClient,
  batch: number,
  minSteps: number,
): Promise<number> {
  const before = client.stats.generatedTokens
  const first = before + batch * LEAD
  const last = first + batch * minSteps
  const marks: { readonly tokens: number; readonly time: number }[] = []
  const look = () => {
    const { generatedTokens } = client.stats
    const isNext = generatedTokens >= (marks.length === 0 ? first : last)
    if (marks.length < 2 && isNext) marks.push({ tokens: generatedTokens, time: performance.now() })
  }
  // Counting what runs takes longer the more there is, so one answer looks for all: the last, which is behind the others.
  const answer = async (i: number) => {
    for await (const _ of client.generate(requestOf(i, LEAD + minSteps + TAIL)))
      if (i === batch - 1) look()
  }
  await Promise.all(Array.from({ length: batch }, (_, i) => answer(i)))
  const [start, end] = marks
  return (1000 * (end!.tokens - start!.tokens)) / (end!.time - start!.time)
}

function requestOf(i: number, maxTokens: number): GenerateRequest {
  return {
    id: `bench ${i}`,
    prompt: Int32Array.of(1 + i),
    n: 1,
    maxTokens,
    sampling: { ...PLAIN_SAMPLING, topP: 0.5, seed: 1n },
    stop: { strings: [], tokens: [], ignoreEos: true },
    logprobs: null,
    promptLogprobs: null,
    cache: 'no-store',
  }
}
