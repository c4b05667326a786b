import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { addKey, type KeyLimits, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { RateLimits } from '../../src/gateway/access/rate-limits.ts'
import { answer } from '../helpers/fake-engine.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { CHAT, COMPLETIONS, HELLO, serve } from './kit.ts'

const folder = temporaryFolder()
let numFiles = 0

/** A server with one key of these limits, and a way to call it with that key. */
async function limited(limits: Partial<KeyLimits>, script?: Parameters<typeof serve>[0]) {
  const path = join(folder, `${numFiles++}.json`)
  const key = { name: 'goose', role: 'user', expiresAt: null, limits: { ...NO_LIMITS, ...limits } } as const
  const { secret } = await changeKeys(path, (keys) => addKey(keys, key, 0))
  // Buckets fill over time; here no time passes, however slow the machine is.
  const rates = new RateLimits(() => 0)
  const served = serve(script, { keyRing: new KeyRing(path), keys: ['operator'], rates })
  const send = (url: string, payload: object, key = secret) => {
    const headers = { authorization: `Bearer ${key}` }
    return served.app.inject({ method: 'POST', url, payload, headers })
  }
  return { ...served, send, secret }
}

describe('requests per minute', () => {
  test('are refused beyond the limit, with the time to retry', async () => {
    const { send } = await limited({ requestsPerMinute: 2 })
    const first = await send(CHAT, HELLO)
    expect(first.statusCode).toBe(200)
    expect(first.headers).toMatchObject({
      'x-ratelimit-limit-requests': '2',
      'x-ratelimit-remaining-requests': '1',
      'x-ratelimit-reset-requests': '30s',
    })
    expect(first.headers['x-ratelimit-limit-tokens']).toBeUndefined()
    expect((await send(CHAT, HELLO)).statusCode).toBe(200)
    const third = await send(CHAT, HELLO)
    expect(third.statusCode).toBe(429)
    expect(third.headers['retry-after']).toBe('30')
    expect(third.headers['x-ratelimit-remaining-requests']).toBe('0')
    expect(third.json().error).toMatchObject({ type: 'rate_limit_error', code: 'rate_limit_exceeded' })
    // Other keys are not affected.
    expect((await send(CHAT, HELLO, 'operator')).statusCode).toBe(200)
  })

  test('count a key in a body too', async () => {
    const { app, secret } = await limited({ requestsPerMinute: 1 })
    const send = () => app.inject({ method: 'POST', url: CHAT, payload: { ...HELLO, password: secret } })
    expect((await send()).statusCode).toBe(200)
    expect((await send()).statusCode).toBe(429)
  })

  test('a stream carries the headers as well', async () => {
    const { send } = await limited({ requestsPerMinute: 9, tokensPerMinute: 500 })
    const reply = await send(CHAT, { ...HELLO, stream: true })
    expect(reply.headers['content-type']).toContain('text/event-stream')
    expect(reply.headers['x-ratelimit-remaining-requests']).toBe('8')
    expect(reply.headers['x-ratelimit-remaining-tokens']).toBe('500')
  })
})

describe('tokens per minute', () => {
  test('count prompts and answers, including stop tokens', async () => {
    const { send } = await limited({ tokensPerMinute: 1000 })
    const payload = { prompt: 'x'.repeat(100), n: 2 }
    expect((await send(COMPLETIONS, payload)).statusCode).toBe(200)
    const used = 100 + 2 * ('Hello, world.'.length + 1)
    const left = Number((await send(COMPLETIONS, payload)).headers['x-ratelimit-remaining-tokens'])
    expect(left - (1000 - used)).toBeGreaterThanOrEqual(0)
    expect(left - (1000 - used)).toBeLessThan(20)
  })

  test('a prompt that finds the queue full is counted when it is read', async () => {
    let numRefused = 0
    const { send } = await limited({ tokensPerMinute: 1000 }, async function* (request) {
      const isSecond = request.prompt[0] === 'y'.charCodeAt(0) + 1
      // The call may not have started yet, so it is repeated until the queue is full.
      if (isSecond) await new Promise((resolve) => setTimeout(resolve, 2))
      if (isSecond && numRefused++ < 3) throw new SkeinError('queue_full', 'full')
      yield* answer(request, 'ok')
    })
    const prompt = ['x'.repeat(100), 'y'.repeat(100)]
    expect((await send(COMPLETIONS, { prompt })).statusCode).toBe(200)
    expect(numRefused).toBe(4)
    const used = 2 * (100 + 'ok'.length + 1)
    const { headers } = await send('/tokenize', { prompt: 'x' })
    const left = Number(headers['x-ratelimit-remaining-tokens'])
    expect(left - (1000 - used)).toBeGreaterThanOrEqual(0)
    expect(left - (1000 - used)).toBeLessThan(20)
  })

  test('running requests finish, and the debt is paid before the next one', async () => {
    const { send, engine } = await limited({ tokensPerMinute: 60 })
    expect((await send(COMPLETIONS, { prompt: 'x'.repeat(200) })).statusCode).toBe(200)
    const second = await send(COMPLETIONS, { prompt: 'x' })
    expect(second.statusCode).toBe(429)
    expect(second.json().error.message).toContain('60 tokens per minute')
    // 200 + 14 - 60 and the next one, at a token per second.
    expect(Number(second.headers['retry-after'])).toBeGreaterThan(150)
    expect(engine.requests).toHaveLength(1)
    // Requests without tokens are allowed.
    expect((await send('/tokenize', { prompt: 'x' })).statusCode).toBe(200)
  })

  test('a stream is refused before it starts', async () => {
    const { send } = await limited({ tokensPerMinute: 1 })
    await send(COMPLETIONS, { prompt: 'xx' })
    const reply = await send(COMPLETIONS, { prompt: 'x', stream: true })
    expect(reply.statusCode).toBe(429)
    expect(reply.headers['content-type']).toContain('application/json')
  })

  test('a batch fails as a whole', async () => {
    const { send } = await limited({ tokensPerMinute: 1 })
    await send(COMPLETIONS, { prompt: 'xx' })
    const body = { source_lang: 'en', target_lang: 'de', text_list: ['a', 'b'] }
    expect((await send('/translate/v1/batch-translate', body)).statusCode).toBe(429)
    expect((await send(CHAT, { contents: ['a', 'b'] })).statusCode).toBe(429)
  })
})

describe('rows', () => {
  test('n counts, and more than the limit is refused for good', async () => {
    const { send } = await limited({ rows: 2 })
    expect((await send(COMPLETIONS, { prompt: 'x', n: 2 })).statusCode).toBe(200)
    const reply = await send(COMPLETIONS, { prompt: 'x', n: 3 })
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error).toMatchObject({ param: 'n' })
  })

  test('a second request is refused while the first uses all rows', async () => {
    let begun = () => {}
    let end = () => {}
    const running = new Promise<void>((resolve) => (begun = resolve))
    const ending = new Promise<void>((resolve) => (end = resolve))
    const { send } = await limited({ rows: 1 }, async function* (request) {
      begun()
      await ending
      yield* answer(request, 'ok')
    })
    const first = send(CHAT, HELLO)
    await running
    const second = await send(CHAT, HELLO)
    expect(second.statusCode).toBe(429)
    expect(second.headers['retry-after']).toMatch(/^[1-4]$/)
    expect(second.json().error.message).toContain('1 rows at once')
    end()
    expect((await first).statusCode).toBe(200)
    expect((await send(CHAT, HELLO)).statusCode).toBe(200)
  })

  test.each([
    [COMPLETIONS, { prompt: ['a', 'b', 'c', 'd', 'e'] }],
    [CHAT, { contents: ['a', 'b', 'c', 'd', 'e'] }],
    ['/big_batch/completions', { contents: ['a', 'b', 'c', 'd', 'e'] }],
    ['/translate/v1/batch-translate', { source_lang: 'en', target_lang: 'de', text_list: ['a', 'b', 'c', 'd', 'e'] }],
  ])('rows of a batch wait for each other: %s', async (url, payload) => {
    let running = 0
    let most = 0
    const { send, engine } = await limited({ rows: 2 }, async function* (request) {
      running++
      most = Math.max(most, running)
      await new Promise((resolve) => setTimeout(resolve, 2))
      yield* answer(request, 'ok')
      running--
    })
    expect((await send(url, payload)).statusCode).toBe(200)
    expect(engine.requests).toHaveLength(5)
    expect(most).toBe(2)
    expect((await send(url, payload)).statusCode).toBe(200)
  })
})

test('the engine gets stored bytes, share and priority, and enforces them', async () => {
  const { send, engine } = await limited({ storedBytes: 1000, share: 2, priority: -1 })
  await send(COMPLETIONS, { prompt: 'x' })
  expect(engine.requests[0]).toMatchObject({ storedBytes: 1000, share: 2, priority: -1 })
  engine.answerCall = () => ({ turns: [] })
  await send('/v1/sessions/a/fork', { new_id: 'b' })
  expect(engine.calls.at(-1)).toMatchObject({ method: 'sessions.fork', params: { storedBytes: 1000 } })
})
