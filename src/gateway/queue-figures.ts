/**
 * How full the engines are, in the words of Albatross's workers: summed over the models that are ready. What is now is for
 * everybody who may ask for an answer; counts of everybody's requests are for operators, as metrics are.
 */
import type { ModelEntry } from '../api/models.ts'
import type { EngineStats } from '../engine/messages.ts'
import type { Principal } from './auth.ts'

/** Of `GET /health` and `GET /v1/queue/status`. */
export function queueFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  const waiting = sum(all, ({ waiting }) => waiting)
  const running = sum(all, ({ running }) => running)
  const prefill = sum(all, ({ prefilling }) => prefilling)
  return {
    waiting,
    prefill,
    decode: running - prefill,
    total_active: waiting + running,
    available_slots: sum(all, ({ freeSlots }) => freeSlots),
    ...(isOperator(caller) ? { stats: totals(all) } : {}),
  }
}

/** GET /v1/stats, for operators. */
export function engineFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  return {
    queue: queueFigures(entries, caller),
    engine: {
      steps: sum(all, ({ steps }) => steps),
      prompt_tokens: sum(all, ({ promptTokens }) => promptTokens),
      generated_tokens: sum(all, ({ generatedTokens }) => generatedTokens),
      last_batch_tokens: sum(all, ({ lastBatchTokens }) => lastBatchTokens),
      busy_seconds: sum(all, ({ busySeconds }) => busySeconds),
    },
  }
}

function totals(all: readonly EngineStats[]): object {
  const completed = sum(all, ({ finishedStop, finishedLength }) => finishedStop + finishedLength)
  const rejected = sum(all, ({ failed }) => failed)
  const cancelled = sum(all, ({ aborted }) => aborted)
  const open = sum(all, ({ waiting, running }) => waiting + running)
  return {
    total_requests: completed + rejected + cancelled + open,
    completed_requests: completed,
    rejected_requests: rejected,
    cancelled_requests: cancelled,
  }
}

function statsOf(entries: readonly ModelEntry[]): EngineStats[] {
  return entries.flatMap(({ client }) => (client === null ? [] : [client.stats]))
}

function sum(all: readonly EngineStats[], of: (stats: EngineStats) => number): number {
  return all.reduce((total, stats) => total + of(stats), 0)
}

function isOperator(caller: Principal | null): boolean {
  return caller !== null && caller.role !== 'user'
}
