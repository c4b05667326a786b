/**
 * How full the engines are, in the words of Albatross's workers: summed over the models that are ready. What is now is for
 * everybody who may ask for an answer; counts of everybody's requests are for operators, as metrics are.
 */
import type { ModelEntry } from '../../api/models.ts'
import { type EngineStats, summedStats } from '../../engine/stats.ts'
import type { Principal } from '../access/auth.ts'

/** Of `GET /health` and `GET /v1/queue/status`. */
export function queueFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  const { waiting, running, prefilling } = all
  return {
    waiting,
    prefill: prefilling,
    decode: running - prefilling,
    total_active: waiting + running,
    available_slots: all.freeSlots,
    ...(isOperator(caller) ? { stats: totals(all) } : {}),
  }
}

/** GET /v1/stats, for operators. */
export function engineFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  return {
    queue: queueFigures(entries, caller),
    engine: {
      steps: all.steps,
      prompt_tokens: all.promptTokens,
      generated_tokens: all.generatedTokens,
      last_batch_tokens: all.lastBatchTokens,
      busy_seconds: all.busySeconds,
    },
  }
}

function totals({
  finishedStop,
  finishedLength,
  failed,
  aborted,
  waiting,
  running,
}: EngineStats): object {
  const completed = finishedStop + finishedLength
  return {
    total_requests: completed + failed + aborted + waiting + running,
    completed_requests: completed,
    rejected_requests: failed,
    cancelled_requests: aborted,
  }
}

function statsOf(entries: readonly ModelEntry[]): EngineStats {
  return summedStats(entries.flatMap(({ client }) => (client === null ? [] : [client.stats])))
}

function isOperator(caller: Principal | null): boolean {
  return caller !== null && caller.role !== 'user'
}
