/**
 * Two keys of one server: the data of one does not exist for the other, whatever it requests and whichever id it knows.
 */
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Llm } from '../../src/index.ts'
import { hasDemo, serveDemo } from './demo.ts'

describe.skipIf(!hasDemo)('a session of another key', () => {
  let app: FastifyInstance
  let llm: Llm
  beforeAll(async () => {
    ;({ app, llm } = await serveDemo({ keys: ['mine', 'theirs'] }))
    const first = await as('mine', 'POST', '/v1/completions', { ...TURN, session_id: 'diary' })
    expect(first.statusCode).toBe(200)
  })
  afterAll(() => app.close())

  const TURN = { prompt: 'The canary is called Ferdinand', max_tokens: 4 }
  const as = (key: string, method: 'GET' | 'POST' | 'DELETE', url: string, payload?: object) =>
    app.inject({
      method,
      url,
      headers: { authorization: `Bearer ${key}` },
      ...(payload === undefined ? {} : { payload }),
    })

  const ASKED: readonly (readonly ['GET' | 'POST' | 'DELETE', string, object?])[] = [
    ['GET', '/v1/sessions/diary'],
    ['GET', '/v1/sessions/diary/export'],
    ['POST', '/v1/sessions/diary/fork', { new_id: 'copy' }],
    ['POST', '/v1/sessions/diary/rewind', { turn: 0 }],
    ['POST', '/v1/sessions/diary/undo', {}],
    ['DELETE', '/v1/sessions/diary'],
    ['POST', '/v1/completions', { ...TURN, session: { id: 'diary', if_missing: 'error' } }],
  ]

  for (const [method, url, body] of ASKED) {
    test(`${method} ${url}: not found, like an unknown id`, async () => {
      const foreign = await as('theirs', method, url, body)
      expect(foreign.statusCode).toBe(404)
      const ofNobody = (text: string) => text.replaceAll('diary', 'nobody')
      const payload = body === undefined ? undefined : JSON.parse(ofNobody(JSON.stringify(body)))
      const unknown = await as('theirs', method, ofNobody(url), payload)
      expect(ofNobody(foreign.body)).toBe(unknown.body)
    })
  }

  test('lists have only those of the key', async () => {
    expect((await as('theirs', 'GET', '/v1/sessions')).json().data).toEqual([])
    const status = await as('theirs', 'POST', '/state/status', {})
    expect(status.body).not.toContain('diary')
  })

  test('another key can have one of the same name', async () => {
    const own = await as('theirs', 'POST', '/v1/completions', { ...TURN, session_id: 'diary' })
    expect(own.json().session).toMatchObject({ turn: 1 })
    expect((await as('theirs', 'DELETE', '/v1/sessions/diary')).statusCode).toBe(200)
  })

  test('afterwards it is unchanged', async () => {
    await as('theirs', 'POST', '/state/delete', { session_id: 'diary' })
    await as('theirs', 'POST', '/v1/server/stop', {})
    expect((await as('mine', 'GET', '/v1/sessions/diary')).json()).toMatchObject({ head: 1, turns: [{ turn: 1 }] })
    const next = await as('mine', 'POST', '/v1/completions', { ...TURN, session_id: 'diary' })
    expect(next.json().session).toMatchObject({ turn: 2 })
  })

  test('a running request can be stopped by its own key only', async () => {
    // Sixteen rows, which will not all end at once by chance.
    const contents = Array.from({ length: 16 }, () => 'Once upon a time')
    const body = { contents, max_tokens: 4000, stop_tokens: [], ignore_eos: true }
    const running = as('mine', 'POST', '/v1/chat/completions', body)
    await expect.poll(() => llm.client.stats.running, { interval: 2 }).toBeGreaterThan(0)
    const stop = async (key: string) => (await as(key, 'POST', '/v1/server/stop', {})).json()
    expect(await stop('theirs')).toEqual({ ok: false, stopped: [], active_request: null })
    const { active_request: id } = (await as('mine', 'GET', '/v1/server/status')).json()
    const named = await as('theirs', 'POST', '/v1/server/stop', { request_id: id?.request_id ?? id })
    expect(named.json()).toMatchObject({ ok: false, stopped: [] })
    expect(await stop('mine')).toMatchObject({ ok: true })
    expect((await running).statusCode).toBe(409)
  })
})
