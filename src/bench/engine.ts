/**
 * Speed of a runner by itself, no engine and no HTTP: decode steps of N rows and prefills of B prompts. A figure is the
 * median over repeated steps; every step is whole: forward pass, head, draw. Knows nothing of files or devices.
 */
import type { BatchRow, Flight, ModelInfo, Runner, SampleSpec } from '../model/runner.ts'

/** As the engine shares prompts out (microbatches.ts). */
const MIN_STEP_TOKENS = 256

export interface PrefillCase {
  readonly prompts: number
  readonly tokens: number
}

export interface BenchPlan {
  /** Rows of each decode case. */
  readonly decode: readonly number[]
  readonly prefill: readonly PrefillCase[]
  readonly minRepeats: number
  /** A case goes on beyond minRepeats until it has run this long. */
  readonly minSeconds: number
}

export interface BenchRow {
  readonly kind: 'decode' | 'prefill'
  /** Rows of the batch, or prompts. */
  readonly batch: number
  /** Tokens of each prompt; 1 for decode. */
  readonly tokens: number
  /** Median, quarter and three-quarter times of one decode step or one whole prefill. */
  readonly milliseconds: number
  readonly lowMilliseconds: number
  readonly highMilliseconds: number
  readonly tokensPerSecond: number
  readonly repeats: number
}

/** What the machine can do at this moment, measured in the same run. */
export interface MachineLimits {
  readonly readBytesPerSecond: number
  /** f32 multiply-adds, two operations each. */
  readonly fmaOperationsPerSecond: number
}

/** The least a case must read and multiply, as shares of its time at the machine's limits; the larger one binds. */
export function limitShares(info: ModelInfo, row: BenchRow, limits: MachineLimits) {
  const headParameters = info.vocabSize * info.stateShape.channels
  const bodyParameters = info.numParameters - 2 * headParameters
  const seconds = row.milliseconds / 1000
  const weights = info.weightBytes - info.tableBytes
  const bytes = weights + 2 * row.batch * info.stateBytes
  // A prompt needs the head once, after its last token.
  const operations = 2 * row.batch * (row.tokens * bodyParameters + headParameters)
  return {
    read: bytes / limits.readBytesPerSecond / seconds,
    fma: operations / limits.fmaOperationsPerSecond / seconds,
  }
}

/** Runs the cases one after another; `onRow` is told of each as it ends. */
export function benchEngine(
  runner: Runner,
  plan: BenchPlan,
  onRow: (row: BenchRow) => void = () => {},
): BenchRow[] {
  const cases = [
    ...plan.decode.map((batch) => ({ kind: 'decode' as const, batch, tokens: 1 })),
    ...plan.prefill.map(({ prompts, tokens }) => ({
      kind: 'prefill' as const,
      batch: prompts,
      tokens,
    })),
  ]
  return cases.map((one) => {
    for (let slot = 0; slot < one.batch; slot++) runner.clearSlot(slot)
    const air = new InTheAir(runner)
    const run =
      one.kind === 'decode' ? decoder(runner, one.batch, air) : prefiller(runner, one, air)
    const times = measure(run, plan)
    air.land()
    const milliseconds = quantile(times, 0.5)
    const row = {
      ...one,
      milliseconds,
      lowMilliseconds: quantile(times, 0.25),
      highMilliseconds: quantile(times, 0.75),
      tokensPerSecond: (one.batch * one.tokens * 1000) / milliseconds,
      repeats: times.length,
    }
    onRow(row)
    return row
  })
}

/** Steps of a case that are on their way, oldest first. */
class InTheAir {
  readonly #runner: Runner
  readonly #flights: Flight[] = []

  constructor(runner: Runner) {
    this.#runner = runner
  }

  /** Waits for the oldest when there is no room for one more. */
  launch(rows: readonly BatchRow[], most: number): void {
    if (this.#flights.length >= most) this.#flights.shift()!.results()
    this.#flights.push(this.#runner.launch(rows))
  }

  land(): void {
    for (const flight of this.#flights.splice(0)) flight.results()
  }
}

/**
 * One step that feeds a token to each row and draws the next, from states that have seen a few. On a pipeline each of as
 * many groups of rows as it has devices takes a step, while the others' are on their way.
 */
function decoder(runner: Runner, batch: number, air: InTheAir): () => void {
  const numGroups = runner.feedsDraws ? 1 : Math.min(runner.maxFlights, batch)
  const slots = Array.from({ length: batch }, (_, slot) => slot)
  const groups = Array.from({ length: numGroups }, (_, g) =>
    slots.filter((slot) => slot % numGroups === g),
  )
  let position = 0
  return () => {
    position++
    for (const group of groups) {
      const rows = group.map((slot) => ({
        slot,
        tokens: Int32Array.of(someToken(runner, slot, position)),
        samples: [draw(slot, position)],
      }))
      air.launch(rows, numGroups)
    }
    if (numGroups === 1) air.land()
  }
}

/** All prompts from start to first token, in steps of the runner's token budget or, on a pipeline, of a share of it. */
function prefiller(
  runner: Runner,
  { batch, tokens }: { batch: number; tokens: number },
  air: InTheAir,
): () => void {
  const prompts = Array.from({ length: batch }, (_, slot) =>
    Int32Array.from({ length: tokens }, (_, t) => someToken(runner, slot, t)),
  )
  return () => {
    const done = prompts.map(() => 0)
    while (done.some((count) => count < tokens)) {
      const rows: BatchRow[] = []
      let budget = stepBudget(runner, batch * tokens)
      for (const [slot, prompt] of prompts.entries()) {
        const chunk = prompt.subarray(done[slot]!, Math.min(tokens, done[slot]! + budget))
        if (chunk.length === 0) continue
        budget -= chunk.length
        done[slot]! += chunk.length
        rows.push({ slot, tokens: chunk, samples: done[slot] === tokens ? [draw(slot, 0)] : [] })
      }
      air.launch(rows, runner.maxFlights)
    }
    air.land()
  }
}

/** Prompt tokens of a step: the devices of a pipeline read parts of them at once. */
function stepBudget({ feedsDraws, maxFlights, maxTokens }: Runner, total: number): number {
  if (feedsDraws) return maxTokens
  return Math.min(maxTokens, Math.max(MIN_STEP_TOKENS, Math.ceil(total / maxFlights)))
}

/** Repeats until both minima are met, after one repeat that warms caches and threads. */
function measure(run: () => void, { minRepeats, minSeconds }: BenchPlan): number[] {
  run()
  const times: number[] = []
  const end = performance.now() + 1000 * minSeconds
  while (times.length < minRepeats || performance.now() < end) {
    const start = performance.now()
    run()
    times.push(performance.now() - start)
  }
  return times.sort((a, b) => a - b)
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!
}

/** Any token will do, but not the same one: rows of the embedding should come from memory. */
function someToken(runner: Runner, slot: number, position: number): number {
  return (1 + slot * 7919 + position * 104_729) % runner.info.vocabSize
}

/** What a chat asks for: temperature and top-p, no penalties. */
function draw(slot: number, position: number): SampleSpec {
  return {
    slot,
    temperature: 1,
    topK: 0,
    topP: 0.5,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    penaltyDecay: 1,
    repetitionPenalty: 1,
    seed: 1n,
    position,
    stream: 0,
    logprobs: null,
    bias: null,
  }
}
