/**
 * What rwkv_lightning_cuda has to watch and steer its calls: count tokens, see what runs, stop, pause and resume.
 * A paused call is its prompts with the tokens drawn so far, read again when it goes on; penalties start afresh then.
 */

import { invalid, SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import { encodePrompts } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCall, LiveCalls } from '../live-calls.ts'
import { chatBody, toTurns } from '../openai/chat-schema.ts'
import { present } from '../openai/sampling.ts'
import { type Call, json, mayLackBody, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { renderTurns } from '../template.ts'
import { batchReply } from './batch.ts'
import { Contents, modelOf, passwordRoute, RequestName } from './body.ts'
import { Row } from './row.ts'
import { MULTI_STATE_PATH, newTurn } from './state.ts'

export function serverRoutes(limits: RequestLimits, live: LiveCalls): readonly Route[] {
  return [
    countRoute(limits),
    statusRoute(live),
    steering(
      post('/v1/server/stop', 'End requests; they fail with 409', nameBody, async (call) => {
        const active = live.live(call.tenant)
        const ids = namedOr(call.body, active)
        const stopped = ids.filter((id) => {
          const isLive = live.end(call.tenant, id, 'stopped')
          return live.drop(call.tenant, id) || isLive
        })
        return json({ ok: stopped.length > 0, stopped, active_request: active[0]?.id ?? null })
      }),
    ),
    steering(
      post('/v1/server/pause', 'End a request so that it can go on later', nameBody, async (call) => {
        const all = live.live(call.tenant)
        const id = onlyOne(namedOr(call.body, pausableOf(all)))
        if (all.some((one) => one.id === id && !one.canPause)) throw notPausable()
        const isPaused = live.end(call.tenant, id, 'paused')
        if (!isPaused) throw notFound('Request not found')
        return json({ ok: true, paused: true, request_id: id })
      }),
    ),
    resumeRoute(limits, live),
  ]
}

/** Without a body a call means whatever there is to mean: all requests, or the only one. */
function steering(route: Route): Route {
  return { ...passwordRoute(mayLackBody(route)), inCluster: 'every' }
}

const nameBody = Type.Object({ password: Maybe(Type.String()), request_id: Maybe(RequestName) })

function namedOr({ request_id }: { request_id?: string | null }, all: readonly LiveCall[]) {
  return present(request_id) ? [request_id] : all.map(({ id }) => id)
}

function onlyOne(ids: readonly string[]): string {
  const [id] = ids
  if (id === undefined) throw notFound('Request not found')
  if (ids.length > 1) throw invalid('request_id', `${ids.length} requests are active; name one of them`)
  return id
}

/** A request that names none means those that can be; where there are no such, the refusal says why. */
function pausableOf(all: readonly LiveCall[]): readonly LiveCall[] {
  const pausable = all.filter(({ canPause }) => canPause)
  return pausable.length > 0 ? pausable : all
}

function notPausable(): SkeinError {
  return invalid('request_id', 'chats and completions of OpenAI’s shapes cannot be paused; stop it, or use a session')
}

function notFound(message: string): SkeinError {
  return new SkeinError('not_found', message, { param: 'request_id' })
}

function countRoute(limits: RequestLimits): Route {
  const { messages } = chatBody(limits).properties
  const body = Type.Object({
    password: Maybe(Type.String()),
    model: Maybe(Type.String()),
    text: Maybe(Type.String()),
    messages: Maybe(messages),
    contents: Maybe(Contents(limits)),
  })
  const summary = 'How many tokens a text, a conversation or a list of prompts has'
  return steering(
    post('/v1/tokens/count', summary, body, async (call) => {
      const { text, messages, contents } = call.body
      if ([text, messages, contents].filter(present).length !== 1)
        throw invalid('text', 'expected exactly one of `text`, `messages` and `contents`')
      const model = modelOf(call)
      const texts = present(messages) ? [renderTurns(toTurns(messages))] : (contents ?? [text!])
      const some = texts.filter((one) => one !== '')
      const all = await encodePrompts(model, some, () => 'text', call.signal)
      return json({ tokens: all.reduce((sum, { length }) => sum + length, 0) })
    }),
  )
}

/** GET, as in the original; its key can only be in the header. */
function statusRoute(live: LiveCalls): Route {
  return {
    method: 'GET',
    path: '/v1/server/status',
    summary: 'What runs, waits and is paused',
    body: null,
    handle: async ({ models, tenant, limits }: Call): Promise<Reply> => {
      const active = live.live(tenant).map(wireCall)
      return json({
        capabilities: ['stop', 'pause', 'resume', 'batch', 'state', 'translate', 'fim'],
        models: models.list().map(({ id, state, client }) => ({
          id,
          state,
          ...(client === null ? {} : { prefill_queue: queueOf(client, limits) }),
        })),
        active_request: active[0] ?? null,
        active_requests: active,
        paused_requests: live.paused(tenant).map(({ id, rows }) => ({ request_id: id, rows: rows.length })),
        api_version: 1,
      })
    },
  }
}

function queueOf(
  { info, stats }: { info: { numSlots: number }; stats: { freeSlots: number; waiting: number } },
  limits: RequestLimits,
): object {
  return {
    hard_max_bsz: limits.sequences,
    dynamic_max_bsz: info.numSlots,
    available_bsz: stats.freeSlots,
    queued_requests: stats.waiting,
  }
}

function wireCall({ id, path, model, numRows, startedAt }: LiveCall): object {
  const seconds = (Date.now() - startedAt) / 1000
  return { request_id: id, path, model, rows: numRows, running_seconds: seconds }
}

function resumeRoute(limits: RequestLimits, live: LiveCalls): Route {
  const body = Type.Object({
    password: Maybe(Type.String()),
    request_id: Maybe(RequestName),
    /** The name of a paused request that continues a session. */
    session_id: Maybe(Type.String()),
    max_tokens: Maybe(BoundedInteger(1, limits.maxTokens)),
    chunk_size: Maybe(BoundedInteger(1, 65_536)),
  })
  const path = '/v1/server/resume'
  const summary = 'Go on with a paused request, as a stream'
  return steering(
    post(path, summary, body, async (call) => {
      const { max_tokens, chunk_size } = call.body
      const paused = live.pausedOf(call.tenant, pausedId(call.body, call.tenant, live))
      if (paused === null) throw notFound('Paused request not found')
      const model = call.models.get(paused.model)
      const rows = paused.rows.map(({ index, request, overlap }, i) => {
        const id = `batch-${call.id}-${i}`
        const maxTokens = max_tokens ?? request.maxTokens
        return new Row(index, { ...request, id, maxTokens }, overlap)
      })
      const { tenant, signal } = call
      const chunkSize = chunk_size ?? paused.chunkSize
      const plan = { id: paused.id, tenant, path, model, rows, chunkSize, signal, resumed: paused }
      const label = { id: 'rwkv7-batch', object: 'chat.completion', model: paused.model }
      const ending = paused.path === MULTI_STATE_PATH ? newTurn : undefined
      return await batchReply(plan, live, label, true, ending)
    }),
  )
}

function pausedId(body: { request_id?: string | null; session_id?: string | null }, tenant: string, live: LiveCalls) {
  if (present(body.request_id)) return body.request_id
  const all = live.paused(tenant)
  const ofSession = all.filter(({ rows }) => rows.some(({ request }) => request.session?.id === body.session_id))
  const found = present(body.session_id) ? ofSession : all
  if (found.length === 0) throw notFound('Paused request not found')
  return onlyOne(found.map(({ id }) => id))
}
