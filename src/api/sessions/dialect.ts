/**
 * /v1/sessions: what may be done to sessions beside continuing them, and /v1/states: how many states are kept and where.
 * A tenant sees its own only.
 */
import type { SessionInfo, TurnInfo } from '../../engine/messages.ts'
import { wireStates } from '../../engine/stats.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import type { ServedModel } from '../models.ts'
import { renderOpenAiError } from '../openai/errors.ts'
import { present } from '../openai/sampling.ts'
import {
  bytes,
  type Call,
  type Dialect,
  del,
  get,
  inCluster,
  json,
  mayLackBody,
  operators,
  post,
  type Route,
} from '../route.ts'
import { Maybe } from '../schema.ts'
import { type ReadTurn, ToolTurns } from './tool-turns.ts'
import { lastSpans, readTurn, spansTo, titleOf } from './transcript.ts'
import { checkNewId, SessionId, TurnNumber } from './use.ts'

export function sessionsDialect(): Dialect {
  return {
    name: 'sessions',
    about: 'Conversations whose state the server keeps',
    routes: [
      listRoute(),
      get('/v1/sessions/:id', 'One session with its turns', async (call) =>
        json(wireSession(await modelOf(call).client.call('sessions.get', refOf(call)))),
      ),
      del('/v1/sessions/:id', 'Delete a session from every tier', async (call) => {
        await modelOf(call).client.call('sessions.delete', refOf(call))
        return json({ id: call.params.id, object: 'session', deleted: true })
      }),
      ...changeRoutes(),
      transcriptRoute(),
      exportRoute(),
      importRoute(),
      ...shareRoutes(),
      statesRoute(),
    ].map(inCluster('node')),
    renderError: renderOpenAiError,
  }
}

/** Counts of everybody's. */
function statesRoute(): Route {
  const route = get('/v1/states', 'How many states are kept, and where', ({ models }) =>
    json({
      object: 'list',
      data: models.list().map(({ id, client }) => ({
        model: id,
        slots: client?.stats.numSlots ?? null,
        free_slots: client?.stats.freeSlots ?? null,
        states: client?.stats.states ? wireStates(client.stats.states) : null,
      })),
    }),
  )
  return operators(route)
}

function changeRoutes(): Route[] {
  const forkBody = Type.Object({ model: Maybe(Type.String()), new_id: SessionId, turn: Maybe(TurnNumber) })
  const rewindBody = Type.Object({ model: Maybe(Type.String()), turn: TurnNumber, if_version: Maybe(TurnNumber) })
  const undoBody = Type.Object({ model: Maybe(Type.String()), if_version: Maybe(TurnNumber) })
  return [
    post('/v1/sessions/:id/fork', 'A new session that begins as this one', forkBody, async (call) => {
      const { new_id, turn } = call.body
      const params = { ...refOf(call), newId: new_id, turn: turn ?? undefined }
      return json(wireSession(await modelOf(call).client.call('sessions.fork', params)))
    }),
    post('/v1/sessions/:id/rewind', 'Continue from another turn', rewindBody, async (call) => {
      const { turn, if_version } = call.body
      const params = { ...refOf(call), turn, ifVersion: if_version ?? undefined }
      return json(wireSession(await modelOf(call).client.call('sessions.rewind', params)))
    }),
    mayLackBody(
      post('/v1/sessions/:id/undo', 'Take the last turn back', undoBody, async (call) => {
        const { if_version } = call.body
        const params = { ...refOf(call), turn: 'undo' as const, ifVersion: if_version ?? undefined }
        return json(wireSession(await modelOf(call).client.call('sessions.rewind', params)))
      }),
    ),
  ]
}

function listRoute(): Route {
  const summary = 'List the sessions, most recently used first (query: limit, after)'
  return get('/v1/sessions', summary, async (call) => {
    const { limit, after } = call.query
    if (limit !== undefined && !/^[1-9]\d{0,5}$/.test(limit))
      throw invalid('limit', 'expected a number of sessions, 1 to 999999')
    // One more than asked for tells whether there are more.
    const more = limit === undefined ? undefined : Number(limit) + 1
    const params = { tenant: call.tenant, limit: more, after }
    const found = await modelOf(call).client.call('sessions.list', params)
    const page = limit === undefined ? found : found.slice(0, Number(limit))
    const hasMore = found.length > page.length
    return json({ object: 'list', data: page.map(wireSession), has_more: hasMore })
  })
}

const DEFAULT_LIMIT = 32_768
const MAX_LIMIT = 262_144

function transcriptRoute(): Route {
  const path = '/v1/sessions/:id/transcript'
  return get(path, 'The text of a session up to a turn (query: turn, limit)', async (call) => {
    const { query } = call
    const limit = numberIn(query.limit, 'limit', MAX_LIMIT, 'a number of tokens') ?? DEFAULT_LIMIT
    const asked = turnIn(query)
    const model = modelOf(call)
    const session = await model.client.call('sessions.get', refOf(call))
    const all = spansTo(session, asked ?? session.head)
    const last = all.at(-1)
    if (last === undefined && (asked ?? 0) > 0) throw unknownTurn(session, asked!)
    const turn = last?.turn ?? 0
    const read = (start: number, end: number) =>
      model.client.call('sessions.tokens', { ...refOf(call), turn, start, end })
    const spans = lastSpans(all, limit)
    const start = spans[0]?.start ?? 0
    const tokens = last === undefined ? new Int32Array() : await read(start, last.end)
    const texts = spans.map((span) => {
      const own = tokens.subarray(span.start - start, span.end - start)
      const isCut = all.every((one) => one.start !== span.start)
      return { span, ...readTurn(model.tokenizer, own, isCut) }
    })
    // The title is of the beginning, which may not be among what is shown.
    const opening = start === 0 ? texts[0] : readTurn(model.tokenizer, await read(0, TITLE_TOKENS), false)
    const tools = new ToolTurns()
    return json({
      object: 'session.transcript',
      id: session.id,
      turn,
      tokens: last?.end ?? 0,
      skipped_tokens: start,
      title: opening === undefined ? '' : titleOf(opening.text, opening.messages),
      turns: texts.map(({ span, text, messages }) => ({
        turn: span.turn,
        parent: span.parent,
        tokens: span.end - span.start,
        text,
        messages: null,
        ...(messages === null ? {} : wireWords(tools.read(messages))),
      })),
    })
  })
}

function wireWords({ messages, tools }: ReadTurn): object {
  if (tools.length === 0) return { messages }
  return { messages, tools: tools.map((one) => ({ type: 'function', function: one })) }
}

/** More than a title has. */
const TITLE_TOKENS = 256

function unknownTurn({ id, turns }: SessionInfo, turn: number): SkeinError {
  const kept = turns.map((one) => one.turn).join(', ')
  return new SkeinError('not_found', `session ${id} has no turn ${turn}; kept are: ${kept}`, { param: 'turn' })
}

function numberIn(text: string | undefined, param: string, max: number, what: string) {
  if (text === undefined) return undefined
  const number = Number(text)
  if (/^\d{1,9}$/.test(text) && number <= max) return number
  throw invalid(param, `expected ${what}, 0 to ${max}`)
}

function turnIn({ turn }: Call['query']): number | undefined {
  return numberIn(turn, 'turn', 999_999_999, 'the number of a turn')
}

function exportRoute(): Route {
  const path = '/v1/sessions/:id/export'
  const route = get(path, 'The state of a turn (query: turn) as a file', async (call) => {
    const params = { ...refOf(call), turn: turnIn(call.query) }
    return bytes(await modelOf(call).client.call('sessions.export', params))
  })
  return { ...route, givesBytes: true }
}

function importRoute(): Route {
  return {
    method: 'POST',
    path: '/v1/sessions/:id/import',
    summary: 'A new session from an exported state (application/octet-stream)',
    body: null,
    takesBytes: true,
    handle: async (call) => {
      checkNewId(call.params.id!)
      // `takesBytes` above.
      const params = { ...refOf(call), bytes: call.body as Uint8Array }
      return json(wireSession(await modelOf(call).client.call('sessions.import', params)))
    },
  }
}

const DAY_SECONDS = 86_400

/** A link gives whoever has a key of this server a copy; the session itself stays with its own key. */
function shareRoutes(): Route[] {
  const shareBody = Type.Object({
    model: Maybe(Type.String()),
    turn: Maybe(TurnNumber),
    ttl_seconds: Maybe(Type.Number({ minimum: 1, maximum: 366 * DAY_SECONDS })),
  })
  const openBody = Type.Object({ model: Maybe(Type.String()), token: Type.String({ minLength: 1, maxLength: 4096 }) })
  return [
    mayLackBody(
      post('/v1/sessions/:id/share', 'A link to a copy of a turn', shareBody, async (call) => {
        const { turn, ttl_seconds } = call.body
        const life = ttl_seconds ?? 7 * DAY_SECONDS
        const params = { ...refOf(call), turn: turn ?? undefined, seconds: life }
        const shared = await modelOf(call).client.call('sessions.share', params)
        const { token, expiresAt } = shared
        const fields = { token, turn: shared.turn, expires: seconds(expiresAt) }
        return json({ object: 'session.share', id: call.params.id, ...fields })
      }),
    ),
    post('/v1/sessions/:id/open', 'A new session that is a copy of what a link leads to', openBody, async (call) => {
      checkNewId(call.params.id!)
      const params = { ...refOf(call), token: call.body.token }
      return json(wireSession(await modelOf(call).client.call('sessions.open', params)))
    }),
  ]
}

/** By the field `model` of the body or of the query; the only one when absent. */
function modelOf({ models, body, query }: Call): ServedModel {
  const named = body as { model?: unknown } | null | undefined
  const name = typeof named?.model === 'string' ? named.model : query.model
  return models.get(name)
}

function refOf({ tenant, params }: Call): { readonly tenant: string; readonly id: string } {
  return { tenant, id: params.id! }
}

function wireSession(session: SessionInfo): object {
  const { id, version, head, turns, createdAt, updatedAt, expiresAt, bytes, isBusy } = session
  return {
    id,
    object: 'session',
    version,
    head,
    created: seconds(createdAt),
    updated: seconds(updatedAt),
    expires: present(expiresAt) ? seconds(expiresAt) : null,
    bytes,
    busy: isBusy,
    turns: turns.map(wireTurn),
  }
}

function wireTurn({ turn, parent, numTokens, createdAt, tier, isSaved }: TurnInfo): object {
  return { turn, parent, tokens: numTokens, created: seconds(createdAt), tier, saved: isSaved }
}

function seconds(milliseconds: number): number {
  return Math.floor(milliseconds / 1000)
}
