/** Running calls, whatever their route: listed, ended by name, and the load of the engine. */
import type { FastifyInstance } from 'fastify'
import { afterEach, describe, expect, test } from 'vitest'
import { LiveCalls } from '../../src/api/live-calls.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../../src/engine/messages.ts'
import { addKey, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { endless } from '../helpers/fake-engine.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { CHAT, COMPLETIONS, eventsOf, HELLO, postTo, serve } from './kit.ts'

interface Active {
  readonly request_id: string
  readonly path: string
  readonly rows: number
}

const folder = temporaryFolder()
let app: FastifyInstance
afterEach(() => app.close())

const active = async (headers = {}): Promise<Active[]> =>
  (await app.inject({ url: '/v1/server/status', headers })).json().active_requests
const only = async (): Promise<Active> => {
  await expect.poll(async () => (await active()).length).toBe(1)
  return (await active())[0]!
}
const cancel = (id: string, headers = {}) => app.inject({ method: 'DELETE', url: `/v1/requests/${id}`, headers })

const OPENAI = '/openai/v1/chat/completions'
const NOW = { contents: ['a', 'b'], request_id: 'mine' }

describe('a call can be ended by its name', () => {
  test.each<[string, object, RegExp, unknown]>([
    [CHAT, HELLO, /^chatcmpl-/, expect.objectContaining({ message: 'Request cancelled' })],
    [COMPLETIONS, { prompt: ['a', 'b'] }, /^cmpl-/, expect.objectContaining({ type: expect.any(String) })],
    [OPENAI, { ...HELLO, request_id: 'mine' }, /^mine$/, 'Request cancelled'],
    [OPENAI, HELLO, /^chatcmpl-/, 'Request cancelled'],
    [CHAT, NOW, /^mine$/, 'Request cancelled'],
  ])('%s %j', async (path, body, name, error) => {
    let numTaken = 0
    const served = serve(async function* (...given) {
      for await (const event of endless(...given)) {
        yield event
        numTaken++
      }
    })
    app = served.app
    for (const stream of [false, true]) {
      const open = postTo(app, path, { ...body, stream })
      const call = await only()
      // Before its first event a stream, too, is refused by its status.
      if (stream) await expect.poll(() => numTaken).toBeGreaterThan(2 * call.rows)
      expect(call).toMatchObject({ path, request_id: expect.stringMatching(name) })
      const reply = await cancel(call.request_id)
      numTaken = 0
      expect(reply.json()).toEqual({ status: 'cancelled', request_id: call.request_id })
      const { statusCode, headers, body: text } = await open
      expect(statusCode).toBe(stream ? 200 : 409)
      expect(headers['x-should-retry']).toBe(stream ? undefined : 'false')
      expect(stream ? eventsOf(text).at(-1) : JSON.parse(text)).toEqual({ error })
      expect(await active()).toEqual([])
      expect((await cancel(call.request_id)).statusCode).toBe(404)
    }
    expect(served.engine.cancelled).toHaveLength(served.engine.requests.length)
  })

  test('stop, and the chat of RWKV-Infer', async () => {
    app = serve(endless).app
    const open = postTo(app, '/chat/completions', HELLO)
    const { request_id } = await only()
    const stopped = await postTo(app, '/v1/server/stop', {})
    expect(stopped.json().stopped).toEqual([request_id])
    expect((await open).json()).toEqual({ detail: 'Request cancelled' })
  })

  test('a call that cannot be paused says so and continues', async () => {
    app = serve(endless).app
    const open = postTo(app, OPENAI, { ...HELLO, request_id: 'chat' })
    await only()
    for (const body of [{}, { request_id: 'chat' }]) {
      const reply = await postTo(app, '/v1/server/pause', body)
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error).toContain('cannot be paused')
    }
    const rows = postTo(app, CHAT, NOW)
    await expect.poll(async () => (await active()).length).toBe(2)
    // It means the call that can be paused.
    expect((await postTo(app, '/v1/server/pause', {})).json()).toMatchObject({ request_id: 'mine' })
    expect((await rows).statusCode).toBe(409)
    await cancel('chat')
    expect((await open).statusCode).toBe(409)
  })

  test('a paused call expires, and its id is free again', async () => {
    app = serve(endless).app
    const rows = postTo(app, CHAT, NOW)
    await only()
    await postTo(app, '/v1/server/pause', {})
    expect((await rows).statusCode).toBe(409)
    expect((await postTo(app, CHAT, NOW)).statusCode).toBe(409)
    expect((await cancel('mine')).json()).toEqual({ status: 'cancelled', request_id: 'mine' })
    const again = postTo(app, CHAT, NOW)
    await only()
    await cancel('mine')
    expect((await again).json()).toEqual({ error: 'Request cancelled' })
  })

  test('a call that is stopped while being paused is stopped', () => {
    app = serve().app
    const live = new LiveCalls()
    const call = { id: 'mine', tenant: '', path: CHAT, model: 'm', numRows: 1, startedAt: 0 }
    const handle = live.enter({ ...call, canPause: true }, new AbortController().signal)
    live.end('', 'mine', 'paused')
    live.end('', 'mine', 'stopped')
    live.end('', 'mine', 'paused')
    expect(handle.ending).toBe('stopped')
  })

  test('belongs to one key only', async () => {
    app = serve(endless, { keys: ['a', 'b'] }).app
    const a = { authorization: 'Bearer a' }
    const b = { authorization: 'Bearer b' }
    const open = app.inject({ method: 'POST', url: CHAT, payload: HELLO, headers: a })
    await expect.poll(async () => (await active(a)).length).toBe(1)
    const [call] = await active(a)
    expect(await active(b)).toEqual([])
    expect((await cancel(call!.request_id, b)).statusCode).toBe(404)
    expect((await cancel(call!.request_id, a)).statusCode).toBe(200)
    expect((await open).statusCode).toBe(409)
  })
})

test('shows how full the engine is, and to operators how much it has done', async () => {
  const path = `${folder}/keys.json`
  const key = { name: 'u', role: 'user', expiresAt: null, limits: NO_LIMITS } as const
  const { secret } = await changeKeys(path, (keys) => addKey(keys, key, 0))
  app = serve(undefined, { keys: ['admin'], keyRing: new KeyRing(path) }).app
  const ask = (url: string, bearer: string) => app.inject({ url, headers: { authorization: `Bearer ${bearer}` } })
  const now = { waiting: 3, prefill: 1, decode: 1, total_active: 5, available_slots: 14 }
  const stats = { total_requests: 5, completed_requests: 0, rejected_requests: 0, cancelled_requests: 0 }
  expect((await ask('/v1/queue/status', secret)).json()).toEqual(now)
  expect((await ask('/v1/queue/status', 'admin')).json()).toEqual({ ...now, stats })
  const health = (await ask('/health', 'admin')).json()
  expect(health).toMatchObject({ status: 'ok', queue: { ...now, stats } })
  expect(health.timestamp).toBeGreaterThan(1e9)
  expect((await ask('/health', secret)).json().queue).toEqual(now)
  expect((await ask('/v1/stats', secret)).statusCode).toBe(403)
  expect((await ask('/v1/stats', 'admin')).json()).toEqual({
    queue: { ...now, stats },
    engine: { steps: 10, prompt_tokens: 0, generated_tokens: 0, last_batch_tokens: 5, busy_seconds: 1.5 },
  })
})

describe('paused calls take little memory, and expire', () => {
  const request = (tokens: number): GenerateRequest => ({
    id: 'r',
    prompt: new Int32Array(tokens),
    n: 1,
    maxTokens: 1,
    sampling: PLAIN_SAMPLING,
    stop: { strings: [], tokens: [], ignoreEos: false },
    logprobs: null,
    promptLogprobs: null,
  })
  const paused = (id: string, tenant: string, tokens: number) => ({
    id,
    tenant,
    path: CHAT,
    model: 'm',
    chunkSize: 1,
    rows: [{ index: 0, request: request(tokens), overlap: '' }],
    owed: [],
  })
  const megabytes = (count: number) => (count * 2 ** 20) / 4 - 1024

  test('at the limits of a key and of all, the oldest is dropped', () => {
    const live = new LiveCalls()
    for (let i = 0; i < 5; i++) live.keep(paused(`p${i}`, 'ann', megabytes(4)))
    expect(live.paused('ann').map(({ id }) => id)).toEqual(['p1', 'p2', 'p3', 'p4'])
    for (let i = 0; i < 10; i++) live.keep(paused('p', `t${i}`, megabytes(12)))
    expect(live.paused('ann').map(({ id }) => id)).toEqual(['p3', 'p4'])
    expect(live.paused('t0')).toHaveLength(1)
    for (let i = 0; i < 100; i++) live.keep(paused(`p${i}`, 'ben', 1))
    expect(live.paused('ben')).toHaveLength(64)
  })

  test('a call that is too large is not kept', () => {
    const live = new LiveCalls()
    expect(live.keep(paused('p', 'ann', megabytes(17)))).toBe(false)
    expect(live.pausedOf('ann', 'p')).toBeNull()
  })

  test('after an hour it is dropped, and its name is free', () => {
    let now = 0
    const live = new LiveCalls(() => now)
    live.keep(paused('p', 'ann', 1))
    now = 3_600_000
    expect(live.pausedOf('ann', 'p')).not.toBeNull()
    now++
    expect(live.pausedOf('ann', 'p')).toBeNull()
    const call = { id: 'p', tenant: 'ann', path: CHAT, model: 'm', numRows: 1, canPause: true }
    live.enter({ ...call, startedAt: 0 }, new AbortController().signal).leave()
  })
})
