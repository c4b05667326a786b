/** The shapes of rwkv_lightning_cuda's /v1/batch/completions: one choice an event, and one last event for all. */
import type { LiveCalls } from '../live-calls.ts'
import { json, type Reply } from '../route.ts'
import { type BatchPlan, choiceOf, pausedFields, runBatch, runToEnd } from './batch.ts'
import type { Row } from './row.ts'

interface FastLabel {
  readonly id: string
  readonly model: string
  readonly created: number
  readonly withMetrics: boolean
}

export async function fastBatchReply(
  plan: BatchPlan,
  live: LiveCalls,
  label: FastLabel,
  isStream: boolean,
): Promise<Reply> {
  const began = performance.now()
  if (isStream) return { kind: 'events', events: fastEvents(plan, live, label, began) }
  await runToEnd(plan, live)
  const { id, model, created, withMetrics } = label
  return json({
    id,
    object: 'chat.completion',
    created,
    model,
    choices: plan.rows.map(choiceOf),
    ...(withMetrics ? { metrics: metricsOf(plan.rows, began) } : {}),
  })
}

async function* fastEvents(
  plan: BatchPlan,
  live: LiveCalls,
  { model, created, withMetrics }: FastLabel,
  began: number,
): AsyncGenerator<object> {
  const head = { id: plan.id, object: 'chat.completion.chunk', created, model }
  const single = function* (rows: readonly Row[], chunkSize: number) {
    for (const row of rows) {
      const content = row.flush(chunkSize)
      if (content === null) continue
      yield { ...head, choices: [{ index: row.index, delta: { content }, finish_reason: null }] }
    }
  }
  for await (const rows of runBatch(plan, live, true)) yield* single(rows, plan.chunkSize)
  yield* single(plan.rows, 0)
  const choices = plan.rows.map(({ index, reason }) => ({
    index,
    delta: {},
    // A paused row has not finished.
    finish_reason: reason,
  }))
  const metrics = withMetrics ? { metrics: metricsOf(plan.rows, began) } : {}
  yield { ...head, choices, ...pausedFields(plan, live), ...metrics }
}

function metricsOf(rows: readonly Row[], began: number): object {
  const seconds = (performance.now() - began) / 1000
  const sum = (of: (row: Row) => number) => rows.reduce((total, row) => total + of(row), 0)
  const completion = sum((row) => row.completionTokens)
  return {
    batch_size: rows.length,
    prompt_tokens: sum((row) => row.promptTokens),
    completion_tokens: completion,
    elapsed_seconds: seconds,
    tokens_per_second: seconds > 0 ? completion / seconds : 0,
  }
}
