/**
 * The figures of a load, made from what each request measured. Pure; all times in milliseconds.
 *
 * E2E   from a request's sending to the last byte of its reply
 * TTFT  from a request's sending to an answer's first piece of text
 * ITL   between two neighbouring pieces of an answer
 * TPOT  from an answer's first piece to its end, shared among the tokens after the first
 */

/** One answer. Times count from the sending of its request; null without a stream. */
export interface AnswerResult {
  readonly outputTokens: number | null
  readonly firstMs: number | null
  /** Time of its last token, or the nearest that the server reveals. */
  readonly endMs: number | null
  readonly gapsMs: readonly number[]
}

export interface RequestResult {
  /** Since the start of the load. */
  readonly dueMs: number
  readonly sentMs: number
  readonly e2eMs: number
  readonly failure: { readonly reason: string; readonly message: string } | null
  readonly inputTokens: number | null
  /** Input tokens that the server had cached. */
  readonly cachedTokens: number | null
  readonly answers: readonly AnswerResult[]
}

export interface Distribution {
  readonly count: number
  readonly mean: number
  readonly min: number
  readonly median: number
  readonly p90: number
  readonly p99: number
  readonly max: number
}

/** A total, which is null if one of its parts is unknown. */
export interface Throughput {
  readonly total: number | null
  readonly perSecond: number | null
}

export interface Summary {
  readonly numRequests: number
  readonly numSucceeded: number
  readonly numFailed: number
  readonly failures: readonly FailureCount[]
  readonly durationMs: number
  readonly requestsPerSecond: number
  /** Of successful requests. */
  readonly inputTokens: Throughput
  readonly cachedTokens: number | null
  readonly outputTokens: Throughput
  readonly totalTokens: Throughput
  readonly peakConcurrency: number
  /** Null without measurements. Of successful requests. */
  readonly e2eMs: Distribution | null
  readonly ttftMs: Distribution | null
  readonly itlMs: Distribution | null
  readonly tpotMs: Distribution | null
  /** From when a request was due to its sending: more than a few milliseconds only with a limit on concurrency. */
  readonly clientWaitMs: Distribution | null
}

interface FailureCount {
  readonly reason: string
  readonly count: number
  /** The message of the first. */
  readonly example: string
}

export function summarise(results: readonly RequestResult[], durationMs: number): Summary {
  const good = results.filter(({ failure }) => failure === null)
  const answers = good.flatMap((result) => result.answers)
  const seconds = durationMs / 1000
  const input = sumOrNull(good.map(({ inputTokens }) => inputTokens))
  const output = sumOrNull(answers.map(({ outputTokens }) => outputTokens))
  const total = input === null || output === null ? null : input + output
  const throughput = (tokens: number | null): Throughput => ({
    total: tokens,
    perSecond: tokens === null ? null : tokens / seconds,
  })
  return {
    numRequests: results.length,
    numSucceeded: good.length,
    numFailed: results.length - good.length,
    failures: failureCounts(results),
    durationMs,
    requestsPerSecond: good.length / seconds,
    inputTokens: throughput(input),
    cachedTokens: sumOrNull(good.map(({ cachedTokens }) => cachedTokens)),
    outputTokens: throughput(output),
    totalTokens: throughput(total),
    peakConcurrency: runningOverTime(results).reduce((most, { running }) => Math.max(most, running), 0),
    e2eMs: distribution(good.map(({ e2eMs }) => e2eMs)),
    ttftMs: distribution(present(answers.map(({ firstMs }) => firstMs))),
    itlMs: distribution(answers.flatMap(({ gapsMs }) => gapsMs)),
    tpotMs: distribution(present(answers.map(timePerToken))),
    clientWaitMs: distribution(results.map(({ dueMs, sentMs }) => Math.max(0, sentMs - dueMs))),
  }
}

function timePerToken({ firstMs, endMs, outputTokens }: AnswerResult): number | null {
  if (firstMs === null || endMs === null || outputTokens === null || outputTokens < 2) return null
  return (endMs - firstMs) / (outputTokens - 1)
}

export function distribution(values: readonly number[]): Distribution | null {
  if (values.length === 0) return null
  const sorted = Float64Array.from(values).sort()
  return {
    count: sorted.length,
    mean: sorted.reduce((sum, value) => sum + value, 0) / sorted.length,
    min: sorted[0]!,
    median: percentile(sorted, 50),
    p90: percentile(sorted, 90),
    p99: percentile(sorted, 99),
    max: sorted.at(-1)!,
  }
}

/** Linear between the two nearest ranks, as in NumPy and most benchmark clients. `sorted` is not empty. */
export function percentile(sorted: Float64Array, percent: number): number {
  const rank = ((sorted.length - 1) * percent) / 100
  const [low, high] = [sorted[Math.floor(rank)]!, sorted[Math.ceil(rank)]!]
  return low + (high - low) * (rank - Math.floor(rank))
}

/** Requests in flight from `ms` on. */
interface RunningPoint {
  readonly ms: number
  readonly running: number
}

/** Every change of the number of requests in flight. An end counts before a start at the same time. */
export function runningOverTime(results: readonly RequestResult[]): RunningPoint[] {
  const changes = results
    .flatMap(({ sentMs, e2eMs }) => [
      { ms: sentMs, change: 1 },
      { ms: sentMs + e2eMs, change: -1 },
    ])
    .sort((a, b) => a.ms - b.ms || a.change - b.change)
  let running = 0
  return changes.map(({ ms, change }) => {
    running += change
    return { ms, running }
  })
}

function failureCounts(results: readonly RequestResult[]): FailureCount[] {
  const counts = new Map<string, FailureCount>()
  for (const { failure } of results) {
    if (failure === null) continue
    const { count, example } = counts.get(failure.reason) ?? { count: 0, example: failure.message }
    counts.set(failure.reason, { reason: failure.reason, count: count + 1, example })
  }
  return [...counts.values()].sort((a, b) => b.count - a.count)
}

function sumOrNull(values: readonly (number | null)[]): number | null {
  return values.reduce<number | null>((sum, value) => (sum === null || value === null ? null : sum + value), 0)
}

function present(values: readonly (number | null)[]): number[] {
  return values.filter((value) => value !== null)
}
