/**
 * The routes that continue a list of raw prompts: /v1, /v2 and /big_batch of rwkv_lightning, and /v1/batch/completions
 * of rwkv_lightning_cuda. They differ in defaults, in the token 0 before a prompt, and in the shape of the last.
 */
import type { SamplingParams } from '../../engine/messages.ts'
import { concatTokens } from '../../files/bytes.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { END_OF_TEXT, encodePrompts } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { filled, present } from '../openai/sampling.ts'
import { type Call, json, type Reply, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { refuseSession } from '../sessions/use.ts'
import { type BatchPlan, batchReply, choiceOf, pausedFields, rowsOf, runBatch, runToEnd } from './batch.ts'
import {
  answering,
  BIG_BATCH,
  CONTENTS,
  Contents,
  CUDA_BATCH,
  contentsOf,
  type Family,
  type LightningFields,
  lightningFields,
  modelNameOf,
  modelOf,
  type Settings,
  settingsOf,
} from './body.ts'
import type { Row } from './row.ts'

export const STATE_ROUTE = 'use /state/chat/completions'
const CHAT_PATH = '/v1/chat/completions'
const BATCH_ID = 'rwkv7-batch'

function contentsBody(limits: RequestLimits) {
  return Type.Object({ ...lightningFields(limits), contents: Maybe(Contents(limits)) })
}

type ContentsBody = Static<ReturnType<typeof contentsBody>>

export function contentsRoutes(limits: RequestLimits, live: LiveCalls): readonly Route[] {
  const body = contentsBody(limits)
  const batch = (path: string, summary: string, choices: BatchChoices) =>
    answering(path, summary, body, async (call) => {
      const plan = await planOf(call, path, choices)
      const label = labelOf(call.body, BATCH_ID)
      const isStream = call.body.stream ?? choices.streamsUnasked === true
      return await batchReply(plan, live, label, isStream)
    })
  return [
    { ...batch(CHAT_PATH, 'Continue a list of raw prompts', { family: CONTENTS }), claims: isContentsOnly },
    batch('/v2/chat/completions', 'Continue a list of raw prompts, each after token 0', {
      family: CONTENTS,
      padsUnasked: true,
    }),
    batch('/big_batch/completions', 'Continue a list of raw prompts, drawing at a temperature', {
      family: BIG_BATCH,
      streamsUnasked: true,
    }),
    fastBatchRoute(limits, live),
  ]
}

/** `contents` without `messages`: a body of rwkv_lightning on the path that the OpenAI API has too. */
function isContentsOnly(body: unknown): boolean {
  if (typeof body !== 'object' || body === null) return false
  const { contents, messages } = body as { contents?: unknown; messages?: unknown }
  return present(contents) && !filled(messages)
}

function fastBatchRoute(limits: RequestLimits, live: LiveCalls): Route {
  const path = '/v1/batch/completions'
  const summary = 'Continue a list of raw prompts; each choice in an event of its own'
  const body = Type.Object({
    ...contentsBody(limits).properties,
    metrics: Maybe(Type.Boolean()),
    report_metrics: Maybe(Type.Boolean()),
    include_metrics: Maybe(Type.Boolean()),
  })
  return answering(path, summary, body, async (call) => {
    const { metrics, report_metrics, include_metrics } = call.body
    const plan = await planOf(call, path, { family: CUDA_BATCH })
    const withMetrics = [metrics, report_metrics, include_metrics].includes(true)
    const label = { id: 'rwkv7-fast-batch', model: modelNameOf(call.body), created: call.now }
    return await fastBatchReply(plan, live, { ...label, withMetrics }, call.body.stream === true)
  })
}

interface BatchChoices {
  readonly family: Family
  /** Whether a prompt follows token 0 unless `pad_zero` says otherwise; the others do not read that field. */
  readonly padsUnasked?: boolean
  /** Whether it streams unless `stream` says otherwise. */
  readonly streamsUnasked?: boolean
}

async function planOf(call: Call<ContentsBody>, path: string, { family, padsUnasked }: BatchChoices) {
  const { body } = call
  const contents = contentsOf(body)
  refuseSession(body, STATE_ROUTE)
  const model = modelOf(call)
  const plain = settingsOf(body, family, model, call.limits)
  const settings = family === BIG_BATCH ? { ...plain, sampling: withNoise(plain.sampling, body) } : plain
  const pads = padsUnasked === true && (body.pad_zero ?? true)
  const prompts = await encodeAll(call, model, contents, pads)
  return planFor(call, { path, model, settings, prompts, family })
}

/**
 * The sampler of October 2025, which only /big_batch still speaks of: the best of logit/temperature + uniform noise, so
 * that no noise is the best token. Elsewhere the field is a leftover that nothing reads.
 */
function withNoise(sampling: SamplingParams, { noise }: ContentsBody): SamplingParams {
  if (!present(noise)) return sampling
  return noise === 0 ? { ...sampling, temperature: 0 } : { ...sampling, topK: 0, topP: 1, noise }
}

async function encodeAll(call: Call, model: ServedModel, contents: readonly string[], pads: boolean) {
  const all = await encodePrompts(model, contents, (i) => `contents[${i}]`, call.signal)
  return all.map((tokens) => ({ tokens: pads ? concatTokens([[END_OF_TEXT], tokens]) : tokens }))
}

interface Prompt {
  readonly tokens: Int32Array
  readonly boundaries?: Int32Array
  /** Instead of `tokens` where a session begins. */
  readonly atBeginning?: Int32Array | undefined
}

/** Builds the engine's requests for a route of this dialect, and the name of the call. */
export function planFor(
  call: Call<LightningFields>,
  of: {
    readonly path: string
    readonly model: ServedModel
    readonly settings: Settings
    readonly prompts: readonly Prompt[]
    readonly family: Family
  },
): BatchPlan {
  const { body, id, tenant, signal } = call
  const requests = of.prompts.map(({ tokens, boundaries, atBeginning }, i) => ({
    id: `batch-${id}-${i}`,
    prompt: tokens,
    promptAtBeginning: atBeginning,
    boundaries,
    tenant,
    ...of.settings,
    sampling: ofRow(of.settings.sampling, body.same_seed === true ? 0 : i),
  }))
  return {
    id: body.request_id ?? `req-${id}`,
    tenant,
    path: of.path,
    model: of.model,
    rows: rowsOf(requests),
    chunkSize: body.chunk_size ?? of.family.chunkSize,
    signal,
  }
}

/** Gives equal prompts of a batch with one seed different answers; the first row has the seed itself. */
function ofRow(sampling: SamplingParams, row: number): SamplingParams {
  const { seed } = sampling
  if (seed === null || row === 0) return sampling
  return { ...sampling, seed: seed ^ BigInt.asUintN(64, BigInt(row) * 0x9e3779b97f4a7c15n) }
}

export function labelOf(body: LightningFields, id: string, object = 'chat.completion') {
  return { id, object, model: modelNameOf(body) }
}

interface FastLabel {
  readonly id: string
  readonly model: string
  readonly created: number
  readonly withMetrics: boolean
}

/** The shapes of rwkv_lightning_cuda's /v1/batch/completions: one choice an event, and one last event for all. */
async function fastBatchReply(plan: BatchPlan, live: LiveCalls, label: FastLabel, isStream: boolean): Promise<Reply> {
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
