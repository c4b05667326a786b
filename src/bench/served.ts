/**
 * Measures the engine around a runner: N parallel answers through an engine client, including the loop, the stop
 * decisions and the events, without HTTP. The time starts and ends while all of them are running.
 */
import type { EngineClient } from '../engine/client.ts'
import type { GenerateRequest } from '../engine/messages.ts'
import type { Runner } from '../model/runner.ts'
import { benchSteps, median } from './engine.ts'
import { plainRequest, SEEDED_SAMPLING } from './plain-request.ts'

/** Tokens of an answer before the time starts, and after it has ended. */
const LEAD = 16
const TAIL = 4

/** The loop and the steps alone are measured in turns, because the speed of a machine changes from second to second. */
const TURNS = 5
/** Steps after which V8 has compiled the loop. Before, it takes half as long again. */
const WARM_STEPS = 450

export interface ServedRate {
  readonly tokensPerSecond: number
  /** The rate as a share of that of the runner's steps alone. */
  readonly ofSteps: number
}

/** Medians of `batch` parallel answers through `client`, an engine over `runner` with nothing else to do. */
export async function benchLoop(
  client: EngineClient,
  runner: Runner,
  batch: number,
  stepMs: number,
  { minRepeats, minSeconds }: { readonly minRepeats: number; readonly minSeconds: number },
): Promise<ServedRate> {
  const numSteps = Math.max(minRepeats, Math.ceil((1000 * minSeconds) / stepMs))
  await benchServed(client, batch, Math.min(numSteps, WARM_STEPS))
  const perTurn = Math.ceil(numSteps / TURNS)
  const rates: number[] = []
  const shares: number[] = []
  for (let turn = 0; turn < TURNS; turn++) {
    const alone = await benchSteps(runner, batch, { minRepeats: perTurn, minSeconds: 0 })
    const rate = await benchServed(client, batch, perTurn)
    rates.push(rate)
    shares.push(rate / alone)
  }
  return { tokensPerSecond: median(rates), ofSteps: median(shares) }
}

/** Tokens per second of `batch` parallel answers, over at least `minSteps` tokens of each. */
async function benchServed(client: EngineClient, batch: number, minSteps: number): Promise<number> {
  const first = batch * LEAD
  const last = first + batch * minSteps
  const marks: { readonly tokens: number; readonly time: number }[] = []
  // Counted here, because the engine's own counters arrive later under load.
  let tokens = 0
  const count = (numTokens: number) => {
    tokens += numTokens
    const isNext = tokens >= (marks.length === 0 ? first : last)
    if (marks.length < 2 && isNext) marks.push({ tokens, time: performance.now() })
  }
  const answer = async (i: number) => {
    for await (const event of client.generate(requestOf(i, LEAD + minSteps + TAIL)))
      if (event.type === 'text') count(event.tokens.length)
  }
  await Promise.all(Array.from({ length: batch }, (_, i) => answer(i)))
  const [start, end] = marks
  return (1000 * (end!.tokens - start!.tokens)) / (end!.time - start!.time)
}

function requestOf(i: number, maxTokens: number): GenerateRequest {
  return plainRequest({
    id: `bench ${i}`,
    prompt: Int32Array.of(1 + i),
    maxTokens,
    sampling: { ...SEEDED_SAMPLING, topP: 0.5 },
    cache: 'no-store',
  })
}
