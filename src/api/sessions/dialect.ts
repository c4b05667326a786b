/**
 * /v1/sessions: what may be done to sessions beside continuing them, and /v1/states: how many states are kept and where.
 * A tenant sees its own only.
 */
import Type from 'typebox'
import type { SessionInfo, StateStats, TurnInfo } from '../../engine/messages.ts'
import type { ServedModel } from '../models.ts'
import { renderOpenAiError } from '../openai/errors.ts'
import { invalid, present } from '../openai/sampling.ts'
import {
  bytes,
  type Call,
  type Dialect,
  get,
  json,
  mayLackBody,
  post,
  type Route,
} from '../route.ts'
import { Maybe } from '../schema.ts'
import { checkNewId, SessionId, TurnNumber } from './use.ts'

export function sessionsDialect(): Dialect {
  return {
    name: 'sessions',
    routes: [
      listRoute(),
      get('/v1/sessions/:id', 'One session with its turns', async (call) =>
        json(wireSession(await modelOf(call).client.call('sessions.get', refOf(call)))),
      ),
      deleteRoute(),
      ...changeRoutes(),
      exportRoute(),
      importRoute(),
      get('/v1/states', 'How many states are kept, and where', ({ models }) =>
        json({
          object: 'list',
          data: models.list().map(({ id, client }) => ({
            model: id,
            slots: client?.stats.numSlots ?? null,
            free_slots: client?.stats.freeSlots ?? null,
            states: client?.stats.states ? countsOf(client.stats.states) : null,
          })),
        }),
      ),
    ],
    renderError: renderOpenAiError,
  }
}

function deleteRoute(): Route {
  const path = '/v1/sessions/:id'
  return {
    method: 'DELETE',
    path,
    summary: 'Delete a session from every tier',
    body: null,
    handle: async (call) => {
      await modelOf(call).client.call('sessions.delete', refOf(call))
      return json({ id: call.params.id, object: 'session', deleted: true })
    },
  }
}

function changeRoutes(): Route[] {
  const forkBody = Type.Object({
    model: Maybe(Type.String()),
    new_id: SessionId,
    turn: Maybe(TurnNumber),
  })
  const rewindBody = Type.Object({
    model: Maybe(Type.String()),
    turn: TurnNumber,
    if_version: Maybe(TurnNumber),
  })
  const undoBody = Type.Object({ model: Maybe(Type.String()), if_version: Maybe(TurnNumber) })
  return [
    post(
      '/v1/sessions/:id/fork',
      'A new session that begins as this one',
      forkBody,
      async (call) => {
        const { new_id, turn } = call.body
        const params = { ...refOf(call), newId: new_id, turn: turn ?? undefined }
        return json(wireSession(await modelOf(call).client.call('sessions.fork', params)))
      },
    ),
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
    if (limit !== undefined && !/^[1-9]\d{0,5}$/.test(limit)) {
      throw invalid('limit', 'expected a number of sessions, 1 to 999999')
    }
    // One more than asked for tells whether there are more.
    const more = limit === undefined ? undefined : Number(limit) + 1
    const params = { tenant: call.tenant, limit: more, after }
    const found = await modelOf(call).client.call('sessions.list', params)
    const page = limit === undefined ? found : found.slice(0, Number(limit))
    const hasMore = found.length > page.length
    return json({ object: 'list', data: page.map(wireSession), has_more: hasMore })
  })
}

function exportRoute(): Route {
  const path = '/v1/sessions/:id/export'
  const route = get(path, 'The state of a turn (query: turn) as a file', async (call) => {
    const { turn } = call.query
    if (turn !== undefined && !/^\d{1,9}$/.test(turn)) {
      throw invalid('turn', 'expected the number of a turn')
    }
    const params = { ...refOf(call), turn: turn === undefined ? undefined : Number(turn) }
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

/** By the field `model` of the body or of the query; the only one when absent. */
function modelOf({ models, body, query }: Call): ServedModel {
  const named = body as { model?: unknown } | null | undefined
  const name = typeof named?.model === 'string' ? named.model : query.model
  return models.get(name)
}

function refOf({ tenant, params }: Call): { readonly tenant: string; readonly id: string } {
  return { tenant, id: params.id! }
}

export function wireSession(session: SessionInfo): object {
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

function countsOf(states: StateStats) {
  return {
    sessions: states.sessions,
    in_slots: states.inSlots,
    in_memory: states.inMemory,
    on_disk: states.onDisk,
    unsaved: states.unsaved,
    prefixes: states.prefixes,
    prefix_bytes: states.prefixBytes,
    cached_tokens: states.cachedTokens,
    prefix_hits: states.prefixHits,
    prefix_misses: states.prefixMisses,
    saves: states.saves,
    failed_saves: states.failedSaves,
    loads: states.loads,
  }
}
