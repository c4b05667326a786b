/** The figures of a run as text: the same rows for the terminal and the page. */
import type { ServeBench, ServeBenchPlan } from './bench.ts'
import type { Distribution, Throughput } from './statistics.ts'

/** Above these the client was too busy, or stopped too long, for its times to be the server's. */
const BUSY_CLIENT_MS = { p99: 20, max: 1000 } as const

/** The parameters of the run, without the key and the prompts. */
export function settingOf(plan: ServeBenchPlan): Record<string, unknown> {
  const { url, endpoint, settings, dataset, numPrompts, batch, seed, timeoutMs } = plan
  return {
    url,
    endpoint,
    ...settings,
    dataset: dataset.kind === 'random' ? dataset.lengths : `file of ${dataset.prompts.length}`,
    ...(dataset.kind === 'file' ? { outputTokens: dataset.outputTokens ?? 'as in the file' } : {}),
    numPrompts,
    batch,
    // JSON has no infinity.
    requestRate: Number.isFinite(plan.requestRate) ? plan.requestRate : 'inf',
    concurrency: Number.isFinite(plan.concurrency) ? plan.concurrency : 'inf',
    seed,
    timeoutMs,
  }
}

export function headline({ summary, numPlanned }: ServeBench): string {
  const { numSucceeded, numRequests, durationMs } = summary
  const unsent = numPlanned - numRequests
  return (
    `${numSucceeded} of ${numPlanned} requests succeeded in ${(durationMs / 1000).toFixed(2)} s` +
    (unsent === 0 ? '' : `; ${unsent} were not sent`)
  )
}

/** Name and value. */
export function figureRows({ summary, ...bench }: ServeBench): [string, string][] {
  const tokens = ({ total, perSecond }: Throughput) =>
    total === null ? 'unknown' : `${total} (${perSecond!.toFixed(1)}/s)`
  const { outputTokensFrom } = bench
  const cached = summary.cachedTokens === null ? '' : `, ${summary.cachedTokens} of them cached`
  const guessed = outputTokensFrom.filter((source) => source !== 'usage')
  const source = guessed.length === 0 ? '' : `, counted by ${guessed.join(' and ')}: no usage was sent`
  const { p99, max } = bench.eventLoopDelayMs
  const wait = summary.clientWaitMs?.p99 ?? 0
  return [
    ['requests/s', summary.requestsPerSecond.toFixed(2)],
    ['input tokens', tokens(summary.inputTokens) + cached],
    ['output tokens', tokens(summary.outputTokens) + source],
    ['all tokens', tokens(summary.totalTokens)],
    ['most at once', String(summary.peakConcurrency)],
    ['waited in the client, p99', `${wait.toFixed(1)} ms`],
    ['event loop delay of the client, p99', `${p99.toFixed(1)} ms (at most ${max.toFixed(0)})`],
  ]
}

/** A heading and a row per kind of time, in milliseconds. */
export function timeRows({ summary }: ServeBench): string[][] {
  const row = (name: string, times: Distribution | null) => [
    name,
    ...[times?.mean, times?.median, times?.p90, times?.p99].map((ms) => ms?.toFixed(2) ?? '-'),
  ]
  return [
    ['ms', 'mean', 'median', 'p90', 'p99'],
    row('E2E', summary.e2eMs),
    row('TTFT', summary.ttftMs),
    row('ITL', summary.itlMs),
    row('TPOT', summary.tpotMs),
  ]
}

/** Failures by reason, and conditions that make the figures doubtful. */
export function warnings({ summary, eventLoopDelayMs }: ServeBench): string[] {
  const failures = summary.failures.map(
    ({ reason, count, example }) => `${count} failed: ${reason} (first: ${example})`,
  )
  const { p99, max } = eventLoopDelayMs
  if (p99 <= BUSY_CLIENT_MS.p99 && max <= BUSY_CLIENT_MS.max) return failures
  const late = `${p99.toFixed(0)} ms late at its own timers (p99; at most ${max.toFixed(0)} ms)`
  return [...failures, `this client was ${late}: its times are not the server's alone`]
}
