/**
 * Measures a runner alone, without engine and HTTP: decode steps of N rows, the same with prompt tokens in the steps,
 * and prefills of B prompts. Each is timed as a forward pass (to the logits, without drawing) and as a full step. Steps
 * of answers follow one another as in service: if the runner can, the next is launched before the last one's results
 * are handled; on a pipeline each device has a part of the rows. A figure is the median over repeated steps, including
 * the host's part. It knows nothing of files or devices.
 */

import { promptShare } from '../engine/prefill-budget.ts'
import {
  type BatchRow,
  type Flight,
  fedByDraw,
  type ModelInfo,
  type RowResult,
  type Runner,
  type SampleSpec,
} from '../model/runner.ts'
import { sampleSpec } from './plain-request.ts'

interface PrefillCase {
  readonly prompts: number
  readonly tokens: number
}

/** Steps that generate answers while a prompt is read. */
interface MixedCase {
  readonly rows: number
  /** Prompt tokens per step. */
  readonly tokens: number
}

interface Repeats {
  readonly minRepeats: number
  /** A case continues beyond minRepeats until it has run this long. */
  readonly minSeconds: number
}

export interface BenchPlan extends Repeats {
  /** Rows of each decode case. */
  readonly decode: readonly number[]
  readonly mixed: readonly MixedCase[]
  readonly prefill: readonly PrefillCase[]
}

interface BenchCase {
  readonly kind: 'decode' | 'mixed' | 'prefill'
  /** Number of answers, or of prompts in a prefill. */
  readonly batch: number
  /** Tokens of each prompt; for a mixed case, of the prompt beside the answers; 1 for decode. */
  readonly tokens: number
}

/** Tokens that a step, or a whole prefill, feeds. */
function numTokens({ kind, batch, tokens }: BenchCase): number {
  return kind === 'mixed' ? batch + tokens : batch * tokens
}

interface Timing {
  readonly milliseconds: number
  readonly lowMilliseconds: number
  readonly highMilliseconds: number
  readonly tokensPerSecond: number
  readonly repeats: number
}

export interface BenchRow extends BenchCase {
  readonly forward: Timing
  readonly step: Timing
}

/** Limits of the machine, measured in the same run. */
export interface MachineLimits {
  readonly bytesPerSecond: number
  /** Rate of the arithmetic of products; a multiply-add counts as two. */
  readonly operationsPerSecond: number
}

/**
 * Minimum seconds of a case at those limits: the larger of reading the weights once per step and the products'
 * arithmetic, plus reading and writing the states, which waits for products.
 */
export function rooflineSeconds(
  info: ModelInfo,
  one: BenchCase,
  stepTokens: number,
  { bytesPerSecond, operationsPerSecond }: MachineLimits,
): number {
  const headParameters = info.vocabSize * info.stateShape.channels
  const bodyParameters = info.numParameters - 2 * headParameters
  const rows = one.kind === 'mixed' ? one.batch + 1 : one.batch
  const steps = Math.ceil(numTokens(one) / stepTokens)
  const read = (steps * (info.weightBytes - info.tableBytes)) / bytesPerSecond
  // A prompt needs the head once, after its last token.
  const operations = 2 * (numTokens(one) * bodyParameters + rows * headParameters)
  const states = (2 * rows * info.stateBytes) / bytesPerSecond
  return Math.max(read, operations / operationsPerSecond) + states
}

/** Runs the cases in order; `onRow` is called as each ends. */
export async function benchEngine(
  runner: Runner,
  plan: BenchPlan,
  onRow: (row: BenchRow) => void = () => {},
): Promise<BenchRow[]> {
  const cases: BenchCase[] = [
    ...plan.decode.map((batch) => ({ kind: 'decode' as const, batch, tokens: 1 })),
    ...plan.mixed.map(({ rows, tokens }) => ({ kind: 'mixed' as const, batch: rows, tokens })),
    ...plan.prefill.map(({ prompts, tokens }) => ({ kind: 'prefill' as const, batch: prompts, tokens })),
  ]
  const rows: BenchRow[] = []
  for (const one of cases) {
    const time = timerOf(one, runner)
    const row = {
      ...one,
      forward: timing(one, await time(runner, one, plan, false)),
      step: timing(one, await time(runner, one, plan, true)),
    }
    onRow(row)
    rows.push(row)
  }
  return rows
}

/** Tokens per second of `batch` answers in full steps, over all of their time: a slow step counts, too. */
export async function benchSteps(runner: Runner, batch: number, repeats: Repeats): Promise<number> {
  const one = { kind: 'decode', batch, tokens: 1 } as const
  const times = await timerOf(one, runner)(runner, one, repeats, true)
  return (1000 * batch * times.length) / times.reduce((sum, ms) => sum + ms, 0)
}

/** The result of a flight; only a device that cannot be waited for synchronously takes turns of the event loop. */
function outcome<T>(flight: Flight<T>): T | Promise<T> {
  return flight.landing === undefined ? flight.result() : flight.landing.then(() => flight.result())
}

function timerOf({ kind }: BenchCase, { feedsDraws }: Runner) {
  if (kind === 'prefill') return timePrefill
  return feedsDraws ? timeDecode : timeDecodeInParts
}

/** Milliseconds from the end of one step to the end of the next; the runner is kept busy if it can overlap steps. */
async function timeDecode(runner: Runner, { kind, batch, tokens }: BenchCase, plan: Repeats, draws: boolean) {
  const numSlots = kind === 'mixed' ? batch + 1 : batch
  for (let slot = 0; slot < numSlots; slot++) runner.clearSlot(slot)
  const prompt = Array.from({ length: tokens }, (_, t) => someToken(runner, batch, t))
  const answers = Array.from({ length: batch }, (_, slot) => new KeptRow(slot, [0], draws))
  // Last, so that draw s belongs to row s. It continues the prompt of the previous step.
  const prompted = kind === 'mixed' ? new KeptRow(batch, prompt, draws) : null
  const rows = [...answers, ...(prompted === null ? [] : [prompted])].map(({ row }) => row)
  const numFlights = runner.overlaps === true ? 2 : runner.maxFlights
  const flights: Flight<RowResult[]>[] = []
  let position = 0
  let last: readonly number[] = []
  const launch = () => {
    const feeds = (slot: number) => {
      if (!draws || position === 0) return someToken(runner, slot, position)
      return flights.length > 0 ? fedByDraw(slot) : last[slot]!
    }
    for (const answer of answers) answer.next(feeds(answer.row.slot), position)
    prompted?.moveTo(position)
    position++
    flights.push(runner.launch(rows))
  }
  const land = async () => {
    const results = await outcome(flights.shift()!)
    last = results.flatMap(({ drawn }) => drawn.map(({ token }) => token))
  }
  const run = async () => {
    while (flights.length < numFlights) launch()
    await land()
  }
  const times = await measure(run, plan)
  while (flights.length > 0) await land()
  return times
}

/**
 * Milliseconds in which every row takes a step, if steps in flight hold different rows and wait for their own draws.
 */
async function timeDecodeInParts(runner: Runner, { kind, batch, tokens }: BenchCase, plan: Repeats, draws: boolean) {
  const slots = Array.from({ length: batch }, (_, slot) => slot)
  const numParts = Math.min(runner.maxFlights, batch)
  const prompt = Array.from({ length: tokens }, (_, t) => someToken(runner, batch, t))
  const prompted = kind === 'mixed' ? new KeptRow(batch, prompt, draws) : null
  const parts = Array.from({ length: numParts }, (_, p) => {
    const own = slots.filter((slot) => slot % numParts === p).map((slot) => new KeptRow(slot, [0], draws))
    return {
      answers: own,
      rows: [...own, ...(prompted === null || p > 0 ? [] : [prompted])].map(({ row }) => row),
      flight: null as Flight<RowResult[]> | null,
      drawn: [] as number[],
    }
  })
  for (const slot of kind === 'mixed' ? [...slots, batch] : slots) runner.clearSlot(slot)
  let position = 0
  const land = async (part: (typeof parts)[number]) => {
    const results = part.flight === null ? [] : await outcome(part.flight)
    part.drawn = results.flatMap(({ drawn }) => drawn.map(({ token }) => token))
  }
  const run = async () => {
    for (const part of parts) {
      await land(part)
      for (const [i, answer] of part.answers.entries())
        answer.next(part.drawn[i] ?? someToken(runner, answer.row.slot, position), position)
      prompted?.moveTo(position)
      part.flight = runner.launch(part.rows)
    }
    position++
  }
  const times = await measure(run, plan)
  for (const part of parts) await land(part)
  return times
}

/** Milliseconds of all prompts from the start to the first token, in steps of the runner's token budget. */
async function timePrefill(runner: Runner, { batch, tokens }: BenchCase, plan: Repeats, draws: boolean) {
  const prompts = Array.from({ length: batch }, (_, slot) =>
    Array.from({ length: tokens }, (_, t) => someToken(runner, slot, t)),
  )
  const run = async () => {
    for (let slot = 0; slot < batch; slot++) runner.clearSlot(slot)
    const flights: Flight<RowResult[]>[] = []
    for (const rows of stepsOf(prompts, promptShare(runner, batch * tokens, runner.maxTokens), draws)) {
      if (flights.length === runner.maxFlights) await outcome(flights.shift()!)
      flights.push(runner.launch(rows))
    }
    for (const flight of flights) await outcome(flight)
  }
  return await measure(run, plan)
}

/** The prompts in steps of at most `maxTokens`, each from its start. */
function stepsOf(prompts: readonly number[][], maxTokens: number, draws: boolean): BatchRow[][] {
  const steps: BatchRow[][] = [[]]
  let budget = maxTokens
  for (const [slot, prompt] of prompts.entries()) {
    for (let start = 0; start < prompt.length; ) {
      if (budget === 0) {
        steps.push([])
        budget = maxTokens
      }
      const end = Math.min(prompt.length, start + budget)
      const isLast = end === prompt.length
      const chunk = row(slot, prompt.slice(start, end), draws && isLast)
      steps.at(-1)!.push({ ...chunk, withHead: isLast })
      budget -= end - start
      start = end
    }
  }
  return steps
}

/** Typical sampling of a chat: temperature and top-p, no penalties. */
function row(slot: number, tokens: readonly number[], draws: boolean): BatchRow {
  const samples = draws ? [sampleSpec({ slot, topP: 0.5, position: 0 })] : []
  return { slot, tokens: Int32Array.from(tokens), samples, withHead: true }
}

/** A row that goes from step to step with its draw, as an answer has one (sequence.ts). */
class KeptRow {
  readonly row: BatchRow
  readonly #draw: SampleSpec & { position: number }

  constructor(slot: number, tokens: readonly number[], draws: boolean) {
    const { samples, ...plain } = row(slot, tokens, true)
    this.#draw = { ...samples[0]! }
    this.row = { ...plain, samples: draws ? [this.#draw] : [] }
  }

  /** Feeds one token and draws the next. */
  next(token: number, position: number): void {
    this.row.tokens[0] = token
    this.#draw.position = position
  }

  /** Feeds the same tokens again. */
  moveTo(position: number): void {
    this.#draw.position = position
  }
}

/** Repeats until both minimums are met, after two runs that warm caches and threads. */
async function measure(run: () => Promise<void>, { minRepeats, minSeconds }: Repeats): Promise<number[]> {
  await run()
  await run()
  const times: number[] = []
  let before = performance.now()
  const end = before + 1000 * minSeconds
  while (times.length < minRepeats || before < end) {
    await run()
    const now = performance.now()
    times.push(now - before)
    before = now
  }
  return times.sort((a, b) => a - b)
}

function timing(one: BenchCase, sorted: readonly number[]): Timing {
  const milliseconds = quantile(sorted, 0.5)
  return {
    milliseconds,
    lowMilliseconds: quantile(sorted, 0.25),
    highMilliseconds: quantile(sorted, 0.75),
    tokensPerSecond: (numTokens(one) * 1000) / milliseconds,
    repeats: sorted.length,
  }
}

export function median(values: readonly number[]): number {
  return quantile(
    values.toSorted((a, b) => a - b),
    0.5,
  )
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!
}

/** Any token, but not always the same: rows of the embedding should come from memory. */
function someToken(runner: Runner, slot: number, position: number): number {
  return (1 + slot * 7919 + position * 104_729) % runner.info.vocabSize
}
