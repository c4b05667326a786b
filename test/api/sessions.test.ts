/** Sessions in every dialect that has them, with the demo model: the answers depend on what was said before. */
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { CHAT, COMPLETIONS, eventsOf, postTo } from './kit.ts'

const GREEDY = { temperature: 0, max_tokens: 12 }
const user = (content: string) => ({ role: 'user', content })

/** The text of a stream's events. */
const streamedText = (reply: { body: string }) =>
  (eventsOf(reply.body).slice(0, -1) as { choices: [{ delta: { content: string } }] }[])
    .map(({ choices }) => choices[0].delta.content)
    .join('')

describe.skipIf(!hasDemo)('sessions', () => {
  let app: FastifyInstance
  beforeAll(async () => {
    ;({ app } = await serveDemo())
  })
  afterAll(() => app.close())

  const numDecoding = async () => (await app.inject('/v1/queue/status')).json().decode
  const chat = async (body: object) => (await postTo(app, CHAT, { ...GREEDY, ...body })).json()

  test('a chat that sends only new messages has the same answer as one that sends all', async () => {
    const first = await chat({ messages: [user('Hello.')], session_id: 'chat' })
    expect(first.session).toEqual({ id: 'chat', turn: 1, version: expect.any(Number), continued: 0 })
    const answer = first.choices[0].message.content as string
    const second = await chat({ messages: [user('And you?')], session_id: 'chat' })
    const messages = [user('Hello.'), { role: 'assistant', content: answer }, user('And you?')]
    const whole = await chat({ messages })
    expect(second.choices[0].message.content).toBe(whole.choices[0].message.content)
    expect(second.usage.prompt_tokens).toBeGreaterThan(first.usage.prompt_tokens)
  })

  test.each([CHAT, '/state/chat/completions', '/multi_state/chat/completions'])(
    '%s: two turns sent at once are those that are sent one after the other',
    async (path) => {
      const say = (session: string, content: string) => {
        const text = path === CHAT ? { messages: [user(content)] } : { contents: [content] }
        const fields = { ...GREEDY, max_tokens: 40, ignore_eos: true, stop_tokens: [], ...text }
        return postTo(app, path, { ...fields, session_id: session })
      }
      const tokensOf = async (session: string) => {
        const { turns } = (await app.inject(`/v1/sessions/${encodeURIComponent(session)}`)).json()
        return turns.map(({ tokens }: { tokens: number }) => tokens)
      }
      const [a, b] = ['one by one', 'at once'].map((name) => `${path} ${name}`) as [string, string]
      for (const content of ['One.', 'Two.']) await say(a, content)
      await Promise.all(['One.', 'Two.'].map((content) => say(b, content)))
      expect(await tokensOf(b)).toEqual(await tokensOf(a))
    },
  )

  test('routes accept every valid session name and refuse others', async () => {
    const route = (id: string, rest = '') => `/v1/sessions/${encodeURIComponent(id)}${rest}`
    for (const id of ['a'.repeat(256), '/'.repeat(256), '\u{1f600}'.repeat(256), 'a/b?c=d#e%2f']) {
      await chat({ messages: [user('Hello.')], session_id: id })
      expect((await app.inject(route(id))).json().id).toBe(id)
      const payload = (await app.inject(route(id, '/export'))).rawPayload
      const gone = await app.inject({ method: 'DELETE', url: route(id) })
      expect(gone.json()).toMatchObject({ deleted: true })
      const headers = { 'content-type': 'application/octet-stream' }
      const into = (name: string) => app.inject({ method: 'POST', url: route(name, '/import'), payload, headers })
      expect((await into(id)).json().id).toBe(id)
      for (const name of ['line\nend', 'a'.repeat(257)]) {
        expect((await into(name)).json().error).toMatchObject({ param: 'id' })
      }
      await app.inject({ method: 'DELETE', url: route(id) })
    }
    // On disk two of them would be the same.
    for (const id of ['\ud800', 'a\udfff', 'a'.repeat(257), '']) {
      const reply = await chat({ messages: [user('Hello.')], session_id: id })
      expect(reply.error).toMatchObject({ param: 'session_id' })
    }
  })

  test('usage counts everything that a session has read, in both formats', async () => {
    const fields = { ...GREEDY, prompt: 'A cat.', ignore_eos: true, session_id: 'counted' }
    const options = { stream: true, stream_options: { include_usage: true } }
    const first = (await postTo(app, COMPLETIONS, fields)).json().usage
    const stream = eventsOf((await postTo(app, COMPLETIONS, { ...fields, ...options })).body)
    const { usage: second } = stream.at(-2) as { usage: typeof first }
    const third = (await postTo(app, COMPLETIONS, fields)).json().usage
    const own = first.prompt_tokens
    expect(second.prompt_tokens).toBe(own + GREEDY.max_tokens + own)
    expect(third.prompt_tokens).toBe(second.prompt_tokens + GREEDY.max_tokens + own)
    for (const usage of [second, third]) {
      const { cached_tokens: cached } = usage.prompt_tokens_details
      expect(cached).toBeGreaterThan(0)
      expect(cached).toBeLessThan(usage.prompt_tokens)
      expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens)
    }
  })

  test('from an earlier turn, as a stream, with choices', async () => {
    const ask = (content: string, session: object) =>
      postTo(app, CHAT, { ...GREEDY, messages: [user(content)], session, stream: true })
    const positions: { turn: number }[] = []
    for (const [content, session] of [
      ['One.', { id: 'tree' }],
      ['Two.', { id: 'tree' }],
      ['Two.', { id: 'tree', from: 1 }],
    ] as const) {
      const events = eventsOf((await ask(content, session)).body) as {
        session?: { turn: number }
      }[]
      positions.push(events.findLast((event) => event.session !== undefined)!.session!)
    }
    expect(positions.map(({ turn }) => turn)).toEqual([1, 2, 3])
    const missing = await ask('x', { id: 'nobody', if_missing: 'error' })
    expect(missing.statusCode).toBe(404)
    const stale = await ask('x', { id: 'tree', if_version: 1 })
    expect(stale.statusCode).toBe(409)
  })

  test.each([
    [{ n: 2 }, 'n'],
    [{ cache: 'no-store' }, 'cache'],
    [{ session: { id: 'other' } }, 'session_id'],
    [{ session: { id: 's', typo: 1 } }, 'session'],
    [{ session_id: 'a\nb' }, 'session_id'],
  ])('%o is refused', async (fields, param) => {
    const body = { messages: [user('x')], session_id: 's', ...fields }
    const reply = await postTo(app, CHAT, body)
    expect(reply.statusCode, reply.body).toBe(400)
    expect(reply.json().error.param).toContain(param)
  })

  test('raw completions append to a session', async () => {
    const whole = await postTo(app, COMPLETIONS, { prompt: 'The capital of France is', ...GREEDY })
    const first = { prompt: 'The capital', session_id: 'raw', max_tokens: 1, temperature: 0 }
    const text = (await postTo(app, COMPLETIONS, first)).json().choices[0].text
    const again = await postTo(app, COMPLETIONS, { prompt: `The capital${text} x`, ...GREEDY })
    const next = { prompt: ' x', session_id: 'raw', ...GREEDY }
    const continued = await postTo(app, COMPLETIONS, next)
    expect(continued.json().choices[0].text).toBe(again.json().choices[0].text)
    expect(continued.json().session).toMatchObject({ id: 'raw', turn: 2 })
    expect(whole.statusCode).toBe(200)
    for (const fields of [{ prompt: ['a', 'b'] }, { echo: true }]) {
      expect((await postTo(app, COMPLETIONS, { ...next, ...fields })).statusCode).toBe(400)
    }
  })

  test.each([
    ['text', ''],
    ['tokens', []],
  ])('an empty prompt of %s continues an answer that was cut off', async (id, prompt) => {
    const settings = { temperature: 0, ignore_eos: true }
    const first = { prompt: 'User: What is the capital of France?\n\nAssistant:', ...settings }
    const textOf = async (body: object) => {
      const { choices, error } = (await postTo(app, COMPLETIONS, body)).json()
      return error?.message ?? choices[0].text
    }
    const session_id = `cut ${id}`
    const whole = await textOf({ ...first, max_tokens: 30 })
    const begin = await textOf({ ...first, session_id, max_tokens: 5 })
    const rest = await textOf({ ...settings, prompt, session_id, max_tokens: 25 })
    expect(begin + rest).toBe(whole)
    const unread = { ...settings, prompt, session_id: `new ${id}`, max_tokens: 1 }
    expect(await textOf(unread)).toContain('the session has nothing left to read')
  })

  describe('/state', () => {
    const state = (body: object) => postTo(app, '/state/chat/completions', { ...GREEDY, ...body })
    const LINE = 'User: What is the capital of France?\n\nAssistant:'

    test('a sequence of turns', async () => {
      const first = (await state({ contents: [LINE], session_id: 'line' })).json()
      expect(first).toMatchObject({ id: 'rwkv7-batch', choices: [{ index: 0 }] })
      const answer = first.choices[0].message.content as string
      const next = 'User: And of Spain?\n\nAssistant:'
      const second = (await state({ contents: [next], session_id: 'line' })).json()
      const whole = (await state({ contents: [`${LINE}${answer}\n\n${next}`], session_id: 'x' })).json()
      expect(second.choices[0].message.content).toBe(whole.choices[0].message.content)
    })

    test('streams end like batches', async () => {
      const reply = await state({ contents: [LINE], session_id: 'line', stream: true })
      const events = eventsOf(reply.body)
      expect(events.at(-1)).toBe('[DONE]')
      expect(Object.keys(events[0] as object)).toEqual(['object', 'choices'])
    })

    test.each([
      [{ contents: ['a'] }, 'Missing session_id parameter'],
      [{ contents: ['a', 'b'], session_id: 's' }, 'exactly one prompt'],
      [{ session_id: 's' }, 'Empty prompts list'],
    ])('%o is refused', async (body, message) => {
      const reply = await state(body)
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error).toContain(message)
    })

    test('status and delete', async () => {
      await state({ contents: [LINE], session_id: 'seen' })
      const status = (await postTo(app, '/state/status', {})).json()
      expect(status).toMatchObject({ status: 'success' })
      expect(status.total_sessions).toBe(status.sessions.length)
      const levels = status.l1_cache_count + status.l2_cache_count + status.database_count
      expect(levels).toBe(status.total_sessions)
      expect(status.sessions[0]).toEqual({
        session_id: 'seen',
        cache_level: 'L1 (VRAM)',
        last_updated: 'In Memory',
        timestamp: expect.any(Number),
      })
      const remove = () => postTo(app, '/state/delete', { session_id: 'seen' })
      expect((await remove()).json()).toEqual({ status: 'success', message: 'Session seen deleted successfully' })
      const again = await remove()
      expect(again.statusCode).toBe(404)
      expect(again.json()).toEqual({ status: 'not_found', message: 'Session seen not found in database' })
      expect((await postTo(app, '/state/delete', {})).json().error).toContain('Missing session_id')
    })

    test('a paused turn continues in its session', async () => {
      const body = { contents: ['User: Tell me a long story.\n\nAssistant:'], session_id: 'paused' }
      // Long enough to be paused before its end.
      const settings = { stop_tokens: [], ignore_eos: true, max_tokens: 200, temperature: 0 }
      const straight = { ...body, ...settings, session_id: 'straight' }
      const whole = (await state(straight)).json().choices[0].message.content as string
      const open = state({ ...body, ...settings, stream: true, chunk_size: 1, request_id: 'p' })
      await expect
        .poll(() => postTo(app, '/v1/server/pause', { request_id: 'p' }), { interval: 1 })
        .toMatchObject({ statusCode: 200 })
      const before = streamedText(await open)
      expect(before.length).toBeLessThan(whole.length)
      const resumed = await postTo(app, '/v1/server/resume', { session_id: 'paused' })
      expect(before + streamedText(resumed)).toBe(whole)
    })
  })

  test('a paused turn continues from the turn it was based on, whatever came after', async () => {
    const settings = { stop_tokens: [], ignore_eos: true, max_tokens: 200, temperature: 0 }
    const state = (body: object) => postTo(app, '/state/chat/completions', { ...settings, ...body })
    const story = ['User: Tell me a long story.\n\nAssistant:']
    for (const session_id of ['alone', 'overtaken'])
      await state({ contents: ['User: Hello.\n\nAssistant:'], session_id, max_tokens: 8 })
    const whole = (await state({ contents: story, session_id: 'alone' })).json().choices[0].message
    const mine = { contents: story, session_id: 'overtaken', request_id: 'q' }
    const open = state({ ...mine, stream: true, chunk_size: 1 })
    await expect.poll(numDecoding, { interval: 1 }).toBe(1)
    await postTo(app, '/v1/server/pause', { request_id: 'q' })
    const before = streamedText(await open)
    expect(before.length).toBeLessThan(whole.content.length)
    // Like the turn itself, if it ended just before the pause.
    await state({ contents: ['User: 你好\n\nAssistant:'], session_id: 'overtaken' })
    const resumed = await postTo(app, '/v1/server/resume', { request_id: 'q' })
    expect(before + streamedText(resumed)).toBe(whole.content)
  })

  test('/multi_state grows a tree', async () => {
    const path = '/multi_state/chat/completions'
    const say = (text: string, dialogue_idx: number, more = {}) =>
      postTo(app, path, { contents: [text], session_id: 'multi', dialogue_idx, ...GREEDY, ...more })
    const first = (await say('User: Hello.\n\nAssistant:', 0)).json()
    expect(first).toMatchObject({ id: 'rwkv7-multi-state', dialogue_idx: 1 })
    const [a, b] = [
      (await say('User: One.\n\nAssistant:', 1)).json(),
      (await say('User: One.\n\nAssistant:', 1)).json(),
    ]
    expect([a.dialogue_idx, b.dialogue_idx]).toEqual([2, 3])
    expect(a.choices).toEqual(b.choices)
    const events = eventsOf((await say('User: Two.\n\nAssistant:', 2, { stream: true })).body)
    expect(events.slice(-2)).toEqual([
      { object: 'multi_state.dialogue_idx', session_id: 'multi:4', dialogue_idx: 4 },
      '[DONE]',
    ])
    const long = { max_tokens: 200, stop_tokens: [], ignore_eos: true, request_id: 'm' }
    const open = say('User: Three.\n\nAssistant:', 4, long)
    await expect.poll(numDecoding, { interval: 1 }).toBe(1)
    await postTo(app, '/v1/server/pause', { request_id: 'm' })
    expect((await open).statusCode).toBe(409)
    const resumed = await postTo(app, '/v1/server/resume', { request_id: 'm' })
    expect(eventsOf(resumed.body).at(-2)).toMatchObject({ session_id: 'multi:5', dialogue_idx: 5 })
    const missing = await say('x', 99)
    expect(missing.statusCode).toBe(404)
    expect(missing.json()).toEqual({ error: 'State not found for dialogue_idx=99' })
  })

  test('/v1/sessions: list, read, fork, rewind, undo, export, import, delete', async () => {
    const get = async (url: string) => (await app.inject({ url })).json()
    await chat({ messages: [user('Hello.')], session_id: 'main' })
    await chat({ messages: [user('More.')], session_id: 'main' })
    const main = await get('/v1/sessions/main')
    expect(main).toMatchObject({ object: 'session', head: 2, busy: false })
    expect(main.turns).toMatchObject([
      { turn: 1, parent: 0 },
      { turn: 2, parent: 1 },
    ])
    const ids = (await get('/v1/sessions')).data.map(({ id }: { id: string }) => id)
    const pages: string[] = []
    for (let path: string | null = '/v1/sessions?limit=2'; path !== null; ) {
      const { data, has_more: hasMore } = await get(path)
      pages.push(...data.map(({ id }: { id: string }) => id))
      expect(data.length).toBeLessThanOrEqual(2)
      path = hasMore ? `/v1/sessions?limit=2&after=${pages.at(-1)}` : null
    }
    expect(pages).toEqual(ids)
    expect(ids.length).toBeGreaterThan(2)
    expect(ids[0]).toBe('main')

    const fork = (await postTo(app, '/v1/sessions/main/fork', { new_id: 'a b', turn: 1 })).json()
    expect(fork).toMatchObject({ id: 'a b', head: 1 })
    expect((await get('/v1/sessions/a%20b')).head).toBe(1)
    expect((await postTo(app, '/v1/sessions/main/fork', { new_id: 'a b' })).statusCode).toBe(409)
    const undone = await app.inject({ method: 'POST', url: '/v1/sessions/main/undo' })
    expect(undone.json().head).toBe(1)
    expect((await postTo(app, '/v1/sessions/main/rewind', { turn: 2 })).json().head).toBe(2)
    const stale = await postTo(app, '/v1/sessions/main/rewind', { turn: 1, if_version: 1 })
    expect(stale.statusCode).toBe(409)

    const file = await app.inject({ url: '/v1/sessions/main/export' })
    expect(file.headers['content-type']).toBe('application/octet-stream')
    const load = (id: string, payload: Buffer, type = 'application/octet-stream') =>
      app.inject({ method: 'POST', url: `/v1/sessions/${id}/import`, payload, headers: { 'content-type': type } })
    expect((await load('copy', file.rawPayload)).json()).toMatchObject({ id: 'copy', head: 1 })
    const next = { messages: [user('And now?')] }
    const [original, copy] = [
      await chat({ ...next, session: { id: 'main', from: 2 } }),
      await chat({ ...next, session_id: 'copy' }),
    ]
    expect(copy.choices).toEqual(original.choices)
    expect((await load('copy', file.rawPayload)).statusCode).toBe(409)
    expect((await load('bad', Buffer.from('no state'))).statusCode).toBeGreaterThanOrEqual(400)
    for (const type of ['application/json', 'application/x-www-form-urlencoded', '']) {
      const refused = await load('bad', Buffer.from('{}'), type)
      expect(refused.statusCode).toBe(415)
      expect(refused.json().error.message).toContain('Content-Type: application/octet-stream')
    }
    const damaged = Buffer.from(file.rawPayload)
    damaged[damaged.length >> 1]! ^= 1
    expect((await load('bad', damaged)).statusCode).toBeGreaterThanOrEqual(400)
    expect((await get('/v1/sessions/main/export?turn=x')).error.param).toBe('turn')

    const gone = await app.inject({ method: 'DELETE', url: '/v1/sessions/main' })
    expect(gone.json()).toEqual({ id: 'main', object: 'session', deleted: true })
    expect((await app.inject({ url: '/v1/sessions/main' })).statusCode).toBe(404)
    expect((await get('/v1/states')).data[0]).toMatchObject({
      model: 'demo',
      slots: 32,
      states: { in_slots: expect.any(Number), prefix_bytes: expect.any(Number) },
    })
  })

  test('routes without sessions say so', async () => {
    for (const [path, body] of [
      [CHAT, { contents: ['x'] }],
      ['/v3/chat/completions', { contents: ['x'] }],
      ['/infill', { input_prefix: 'x' }],
    ] as const) {
      const reply = await postTo(app, path, { ...body, session_id: 's' })
      expect(reply.statusCode, path).toBe(400)
      expect(reply.body).toContain('session_id')
    }
  })
})

test.skipIf(!hasDemo)('a session belongs to the key that made it', async () => {
  const { app } = await serveDemo({ keys: ['a', 'b'] })
  const state = (password: string) =>
    postTo(app, '/state/chat/completions', { contents: ['Hi'], session_id: 's', max_tokens: 2, password })
  await state('a')
  const seen = async (password: string) => (await postTo(app, '/state/status', { password })).json().total_sessions
  expect([await seen('a'), await seen('b')]).toEqual([1, 0])
  const gone = await postTo(app, '/state/delete', { session_id: 's', password: 'b' })
  expect(gone.statusCode).toBe(404)
  await app.close()
})
