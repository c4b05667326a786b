/**
 * Many rows as one call, in the two shapes of rwkv_lightning: one object with all choices, or a stream whose events
 * hold the new text of whichever rows have some. How much text an event holds never changes the text.
 */
import type { GenerateRequest } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { drained, runGroups } from '../answers.ts'
import type { LiveCalls, PausedCall } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { json, type Reply } from '../route.ts'
import { Row } from './row.ts'

export interface BatchPlan {
  /** Its id in /v1/server/*. */
  readonly id: string
  readonly tenant: string
  readonly path: string
  readonly model: ServedModel
  readonly rows: readonly Row[]
  readonly chunkSize: number
  readonly signal: AbortSignal
  /** The paused call that it goes on with. */
  readonly resumed?: PausedCall
}

interface BatchLabel {
  readonly id: string
  readonly object: string
  /** As the client wrote it. */
  readonly model: string
}

export function rowsOf(requests: readonly GenerateRequest[]): Row[] {
  return requests.map((request, index) => new Row(index, request))
}

/** Runs the rows; yields those that something happened to, by index. Returns whether the call was paused. */
export async function* runBatch(
  plan: BatchPlan,
  live: LiveCalls,
  isStream: boolean,
): AsyncGenerator<readonly Row[], boolean> {
  const { id, tenant, path, model, rows, signal } = plan
  const isResumed = plan.resumed !== undefined
  const startedAt = Date.now()
  const call = { id, tenant, path, model: model.id, numRows: rows.length, startedAt }
  const handle = live.enter({ ...call, canPause: true }, signal, isResumed)
  try {
    const requests = rows.map(({ request }) => request)
    for await (const group of runGroups(model.client, requests, handle.signal)) {
      // Until here it can be resumed once more: nothing of this has been shown.
      if (isResumed) live.drop(tenant, id)
      const changed = new Set<Row>()
      for (const { prompt, event } of group) {
        const row = rows[prompt]!
        row.take(event)
        changed.add(row)
      }
      yield [...changed].sort((a, b) => a.index - b.index)
    }
    // No row is left to continue.
    if (isResumed) live.drop(tenant, id)
    return false
  } catch (thrown) {
    if (handle.ending !== 'paused') throw handle.failureOf(thrown)
    if (keepPaused(plan, live, isStream)) return true
    throw new SkeinError('too_large', 'the request has too many prompts and texts to be kept, and was stopped')
  } finally {
    handle.leave()
  }
}

/** False if it is too large. */
function keepPaused(plan: BatchPlan, live: LiveCalls, isStream: boolean): boolean {
  const { id, tenant, path, model, rows, chunkSize, resumed } = plan
  const unfinished = rows.filter(({ isWhole }) => !isWhole)
  const texts = rows.map(({ index, text }) => ({ index, content: text }))
  return live.keep({
    id,
    tenant,
    path: resumed?.path ?? path,
    model: model.id,
    chunkSize,
    rows: unfinished.map((row) => row.paused(model.tokenizer)),
    // A stream still sends what its chunks had gathered.
    owed: isStream ? [] : texts.filter(({ content }) => content !== ''),
  })
}

export async function batchReply(
  plan: BatchPlan,
  live: LiveCalls,
  label: BatchLabel,
  isStream: boolean,
  ending: Ending = () => null,
): Promise<Reply> {
  if (isStream) return { kind: 'events', events: batchEvents(plan, live, ending) }
  await runToEnd(plan, live)
  return json({ ...label, choices: plan.rows.map(choiceOf), ...ending(plan.rows)?.fields })
}

/** Adds a route's last fields beside its rows: to a whole reply, or as an event of the stream. */
type Ending = (rows: readonly Row[]) => { readonly fields: object; readonly event: object } | null

/** For replies that are not streamed: a paused call replies only with the name to resume it by. */
export async function runToEnd(plan: BatchPlan, live: LiveCalls): Promise<void> {
  if (!(await drained(runBatch(plan, live, false)))) return
  throw new SkeinError('conflict', `Request paused; POST /v1/server/resume with request_id ${plan.id} continues it`)
}

/** Choices whose text is due, as one event; a row without new text is absent from it. */
async function* batchEvents(plan: BatchPlan, live: LiveCalls, ending: Ending): AsyncGenerator<object> {
  let owed = owedEvent(plan)
  for await (const rows of runBatch(plan, live, true)) {
    // Not before: until then a failure leaves the call paused, and the text would come twice.
    if (owed !== null) yield owed
    owed = null
    const event = eventOf(rows, plan.chunkSize)
    if (event !== null) yield event
  }
  if (owed !== null) yield owed
  // A paused row owes what its chunk had gathered.
  const rest = eventOf(plan.rows, 0)
  if (rest !== null) yield rest
  const last = ending(plan.rows)
  if (last !== null) yield last.event
  const paused = pausedFields(plan, live)
  if (paused === null) return
  // Clients look for text in every event.
  const open = plan.rows.filter(({ isWhole }) => !isWhole)
  const choices = open.map(({ index }) => ({ index, delta: { content: '' } }))
  yield { object: 'chat.completion.chunk', choices, ...paused }
}

/**
 * The fields that the last event of a stream adds when its call was paused and can be resumed; null when it has ended.
 */
export function pausedFields({ tenant, id }: BatchPlan, live: LiveCalls): object | null {
  return live.pausedOf(tenant, id) === null ? null : { paused: true, request_id: id }
}

function eventOf(rows: readonly Row[], chunkSize: number): object | null {
  const choices: object[] = []
  for (const row of rows) {
    const content = row.flush(chunkSize)
    if (content !== null) choices.push({ index: row.index, delta: { content } })
  }
  return choices.length === 0 ? null : { object: 'chat.completion.chunk', choices }
}

function owedEvent({ resumed }: BatchPlan): object | null {
  const choices = (resumed?.owed ?? []).map(({ index, content }) => ({ index, delta: { content } }))
  return choices.length === 0 ? null : { object: 'chat.completion.chunk', choices }
}

export function choiceOf({ index, text, reason }: Row): object {
  return { index, message: { role: 'assistant', content: text }, finish_reason: reason }
}
