/**
 * The routes over kept states: /state/* (one line of turns per session) and /multi_state (a tree of them). Prompts are
 * appended to the state as they are; only the blank line between two turns is put in where it is missing.
 */

import type { SessionInfo, SessionUse } from '../../engine/messages.ts'
import { invalid, notImplemented, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { present } from '../openai/sampling.ts'
import { type Call, json, mayLackBody, post, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { encodeTurn, SessionId, TurnNumber } from '../sessions/use.ts'
import { type BatchPlan, batchReply } from './batch.ts'
import {
  answering,
  CONTENTS,
  Contents,
  contentsOf,
  lightningFields,
  modelOf,
  passwordRoute,
  settingsOf,
} from './body.ts'
import { labelOf, planFor } from './contents.ts'
import type { Row } from './row.ts'

export const MULTI_STATE_PATH = '/multi_state/chat/completions'

export function stateRoutes(limits: RequestLimits, live: LiveCalls): readonly Route[] {
  return [
    stateChatRoute(limits, live),
    multiStateRoute(limits, live),
    passwordRoute(mayLackBody(statusRoute())),
    passwordRoute(deleteRoute()),
  ]
}

function stateBody(limits: RequestLimits) {
  return Type.Object({ ...lightningFields(limits), contents: Maybe(Contents(limits)), session_id: Maybe(SessionId) })
}

type StateBody = Static<ReturnType<typeof stateBody>>

function stateChatRoute(limits: RequestLimits, live: LiveCalls): Route {
  const path = '/state/chat/completions'
  const summary = 'Continue a session with one raw prompt'
  return answering(path, summary, stateBody(limits), async (call) => {
    const session = useOf(idOf(call.body))
    const plan = await planOf(call, path, session)
    const label = labelOf(call.body, 'rwkv7-batch')
    return await batchReply(plan, live, label, call.body.stream === true)
  })
}

function multiStateRoute(limits: RequestLimits, live: LiveCalls): Route {
  const path = MULTI_STATE_PATH
  const summary = 'Continue any turn of a session; the answer is a new turn'
  const schema = Type.Object({ ...stateBody(limits).properties, dialogue_idx: Maybe(TurnNumber) })
  return answering(path, summary, schema, async (call) => {
    const from = call.body.dialogue_idx ?? 0
    const id = idOf(call.body)
    const model = modelOf(call)
    if (from > 0) await checkTurn(model, call.tenant, id, from)
    const plan = await planOf(call, path, { ...useOf(id), from })
    const label = labelOf(call.body, 'rwkv7-multi-state')
    return await batchReply(plan, live, label, call.body.stream === true, newTurn)
  })
}

/** The fields on the answer's turn that both forms share. */
export function newTurn([row]: readonly Row[]) {
  const position = row?.session
  // A paused row has not become one.
  if (!present(position)) return null
  const { id, turn } = position
  const event = { object: 'multi_state.dialogue_idx', session_id: `${id}:${turn}`, dialogue_idx: turn }
  return { fields: { dialogue_idx: turn }, event }
}

async function checkTurn({ client }: ServedModel, tenant: string, id: string, from: number): Promise<void> {
  const turns = await client.call('sessions.get', { tenant, id }).then(
    (session) => session.turns,
    (thrown) => {
      if (thrown instanceof SkeinError && thrown.code === 'not_found') return []
      throw thrown
    },
  )
  if (turns.some(({ turn }) => turn === from)) return
  throw new SkeinError('not_found', `State not found for dialogue_idx=${from}`)
}

function idOf({ session_id }: { session_id?: string | null }): string {
  // Without it, all clients that leave it out would share one conversation.
  if (!present(session_id)) throw invalid('session_id', 'Missing session_id parameter')
  return session_id
}

function useOf(id: string): SessionUse {
  return { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' }
}

async function planOf(call: Call<StateBody>, path: string, use: SessionUse): Promise<BatchPlan> {
  const [text, ...more] = contentsOf(call.body)
  if (more.length > 0) throw invalid('contents', 'Request must contain exactly one prompt')
  const model = modelOf(call)
  const settings = settingsOf(call.body, CONTENTS, model, call.limits)
  const { prompt, promptAtBeginning } = await encodeTurn(model, text!, 'contents', call.signal)
  return planFor(call, {
    path,
    model,
    settings: { ...settings, session: { ...use, origin: call.id } },
    prompts: [{ tokens: prompt, atBeginning: promptAtBeginning }],
    family: CONTENTS,
  })
}

function statusRoute(): Route {
  const body = Type.Object({ password: Maybe(Type.String()), model: Maybe(Type.String()) })
  return post('/state/status', 'List the sessions and where their states are', body, async (call) => {
    const { client } = modelOf(call)
    const sessions = await client.call('sessions.list', { tenant: call.tenant })
    const levels = sessions.map(levelOf)
    const count = (level: Level) => levels.filter((one) => one === level).length
    return json({
      status: 'success',
      total_sessions: sessions.length,
      l1_cache_count: count('L1 (VRAM)'),
      l2_cache_count: count('L2 (RAM)'),
      database_count: count('Database (Disk)'),
      sessions: sessions.map((session, i) => ({
        session_id: session.id,
        cache_level: levels[i],
        last_updated:
          levels[i] === 'Database (Disk)'
            ? new Date(session.updatedAt).toISOString().slice(0, 19).replace('T', ' ')
            : 'In Memory',
        timestamp: session.updatedAt / 1000,
      })),
    })
  })
}

type Level = 'L1 (VRAM)' | 'L2 (RAM)' | 'Database (Disk)'

const LEVELS = { device: 'L1 (VRAM)', memory: 'L2 (RAM)', disk: 'Database (Disk)' } as const

/** Where the state is that the next request continues. */
function levelOf({ head, turns }: SessionInfo): Level {
  const turn = turns.find((candidate) => candidate.turn === head)
  return LEVELS[turn?.tier ?? 'disk']
}

function deleteRoute(): Route {
  const body = Type.Object({
    password: Maybe(Type.String()),
    model: Maybe(Type.String()),
    session_id: Maybe(SessionId),
    delete_prefix: Maybe(Type.Boolean()),
  })
  return post('/state/delete', 'Delete a session from every level', body, async (call) => {
    const id = idOf(call.body)
    if (call.body.delete_prefix === true)
      throw notImplemented('delete_prefix', 'prompt prefixes belong to no session here; leave it out')
    const { client } = modelOf(call)
    try {
      await client.call('sessions.delete', { tenant: call.tenant, id })
    } catch (thrown) {
      if (!(thrown instanceof SkeinError && thrown.code === 'not_found')) throw thrown
      return json({ status: 'not_found', message: `Session ${id} not found in database` }, 404)
    }
    return json({ status: 'success', message: `Session ${id} deleted successfully` })
  })
}
