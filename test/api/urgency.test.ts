/** The priority and the timeout of a request, on every route that has them. */
import { join } from 'node:path'
import { beforeEach, describe, expect, test, vi } from 'vitest'
import { addKey, type KeyLimits, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { allDialects } from '../../src/gateway/app.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import type { Script } from '../helpers/fake-engine.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { CHAT, COMPLETIONS, eventsOf, HELLO, serve } from './kit.ts'

const folder = temporaryFolder()
let numFiles = 0

async function keyed(limits: Partial<KeyLimits>, script?: Script) {
  const path = join(folder, `${numFiles++}.json`)
  const own = { ...NO_LIMITS, ...limits }
  const key = { name: 'goose', role: 'user', expiresAt: null, limits: own } as const
  const { secret } = await changeKeys(path, (keys) => addKey(keys, key, 0))
  const served = serve(script, { keyRing: new KeyRing(path) })
  const headers = { authorization: `Bearer ${secret}` }
  const send = (url: string, payload: object) => served.app.inject({ method: 'POST', url, payload, headers })
  return { ...served, send }
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  return () => vi.useRealTimers()
})

/** Sends `text`, and then nothing for a minute. */
const slow = (text = ''): Script =>
  async function* ({ id }, signal) {
    if (text !== '') yield { type: 'prompt', id, logprobs: null }
    if (text !== '') yield { type: 'text', id, index: 0, text, tokens: [1], logprobs: null }
    vi.advanceTimersByTime(60_000)
    if (!signal?.aborted) await new Promise((resolve) => signal?.addEventListener('abort', resolve))
  }

/** A body for each route that answers a prompt and has both fields. */
const BODIES: Readonly<Record<string, object>> = {
  [CHAT]: HELLO,
  [COMPLETIONS]: { prompt: 'x' },
  '/v1/responses': { input: 'x' },
  '/v1/messages': { model: 'rwkv', max_tokens: 5, ...HELLO },
  '/api/chat': { model: 'rwkv', ...HELLO, stream: false },
  '/api/generate': { model: 'rwkv', prompt: 'x', stream: false },
  '/completion': { prompt: 'x' },
  '/infill': { input_prefix: 'x', input_suffix: 'y' },
  '/v1/fim/completions': { prompt: 'x' },
  '/chat/completions': HELLO,
  '/v2/chat/completions': { contents: ['x'] },
  '/v1/batch/completions': { contents: ['x'] },
  '/translate/v1/batch-translate': { target_lang: 'de', source_lang: 'en', text_list: ['x'] },
}

test('every one of these routes declares the fields', () => {
  const routes = allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)
  const naming = routes.filter(({ body }) => {
    const { properties = {} } = (body ?? {}) as { readonly properties?: object }
    return 'priority' in properties && 'timeout' in properties
  })
  const paths = naming.map(({ path }) => path)
  for (const path of Object.keys(BODIES)) expect(paths).toContain(path)
})

describe.each(Object.entries(BODIES))('%s', (path, body) => {
  test('passes the priority on, and ends at its timeout', async () => {
    const { send, engine } = await keyed({ priority: 5 })
    expect((await send(path, { ...body, priority: -3 })).statusCode).toBe(200)
    expect(engine.requests[0]!.priority).toBe(-3)
    engine.script = slow()
    const late = await send(path, { ...body, timeout: 20 })
    expect(late.body).toContain('within the 20 s')
    expect(late.statusCode).toBe(504)
    expect(engine.cancelled).toHaveLength(1)
  })
})

describe('a priority', () => {
  test('is that of the key if a request has none', async () => {
    const { send, engine } = await keyed({ priority: 5 })
    await send(COMPLETIONS, { prompt: 'x' })
    await send(COMPLETIONS, { prompt: 'x', priority: 5 })
    expect(engine.requests.map(({ priority }) => priority)).toEqual([5, 5])
  })

  test('is at most that of the key', async () => {
    for (const [own, asked] of [
      [5, 6],
      [-5, 0],
      [null, 1],
    ] as const) {
      const { send, engine } = await keyed({ priority: own })
      const reply = await send(COMPLETIONS, { prompt: 'x', priority: asked })
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error).toMatchObject({ param: 'priority', code: 'invalid_request' })
      expect(engine.requests).toEqual([])
    }
  })

  test('is at most 0 without keys', async () => {
    const { app, engine } = serve()
    const send = (priority: number) =>
      app.inject({ method: 'POST', url: COMPLETIONS, payload: { prompt: 'x', priority } })
    expect((await send(1)).statusCode).toBe(400)
    expect((await send(-100)).statusCode).toBe(200)
    expect((await send(-101)).statusCode).toBe(400)
    expect(engine.requests[0]!.priority).toBe(-100)
  })
})

describe('a timeout', () => {
  test('of a key applies to requests without one, and is the maximum', async () => {
    const { send, engine } = await keyed({ timeoutSeconds: 20 }, slow())
    const late = await send(COMPLETIONS, { prompt: 'x' })
    expect(late.statusCode).toBe(504)
    expect(late.json().error).toMatchObject({ type: 'server_error', code: 'deadline_exceeded' })
    // OpenAI's clients would repeat the request.
    expect(late.headers['x-should-retry']).toBe('false')
    const more = await send(COMPLETIONS, { prompt: 'x', timeout: 21 })
    expect(more.statusCode).toBe(400)
    expect(more.json().error.param).toBe('timeout')
    expect(engine.requests).toHaveLength(1)
    // It also applies to routes without the field.
    expect((await send('/openai/x', {})).statusCode).toBe(404)
    expect((await send('/api/embed', { model: 'rwkv', input: 'x' })).statusCode).not.toBe(200)
  })

  test('ends a started stream with an error event', async () => {
    const { send, engine } = await keyed({}, slow('Hello'))
    const reply = await send(CHAT, { ...HELLO, stream: true, timeout: 20 })
    expect(reply.statusCode).toBe(200)
    expect(reply.body).toContain('Hello')
    expect(eventsOf(reply.body).at(-1)).toMatchObject({ error: { code: 'deadline_exceeded' } })
    expect(engine.cancelled).toHaveLength(1)
  })

  test('before the first event of a stream it is a status', async () => {
    const { send } = await keyed({}, slow())
    const reply = await send(CHAT, { ...HELLO, stream: true, timeout: 20 })
    expect(reply.statusCode).toBe(504)
  })

  test('is the same for all prompts of a call', async () => {
    let numRequests = 0
    const { send, engine } = await keyed({}, slow())
    engine.script = (request, signal) => {
      numRequests++
      return slow()(request, signal)
    }
    const prompt = Array.from({ length: 40 }, () => 'x')
    const reply = await send(COMPLETIONS, { prompt, timeout: 20 })
    expect(reply.statusCode).toBe(504)
    // The engine has 16 slots: the others never started.
    expect(numRequests).toBeLessThanOrEqual(16)
  })

  test('does not affect what ends in time', async () => {
    const { send } = await keyed({ timeoutSeconds: 60 })
    expect((await send(COMPLETIONS, { prompt: 'x', timeout: 60 })).statusCode).toBe(200)
    for (const timeout of [0, -1, 86_401, '5'])
      expect((await send(COMPLETIONS, { prompt: 'x', timeout })).statusCode).toBe(400)
  })
})
