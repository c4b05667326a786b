import { expect, test } from 'vitest'
import { SAMPLING_ROWS } from '../../src/sampling.ts'
import { CHAT, COMPLETIONS, HELLO, postTo, serve } from './kit.ts'

const times = <T>(n: number, value: T): T[] => Array.from({ length: n }, () => value)
const bias = (n: number) => Object.fromEntries(Array.from({ length: n }, (_, i) => [i, 1]))

/** Field → values at the limit that pass, and values beyond it that fail. */
const EDGES: [string, unknown[], unknown[]][] = [
  ['n', [1, 16], [0, -1, 17, 1.5, 2 ** 31, 2 ** 53, '1', true]],
  ['best_of', [1], [0, 17, 'x']],
  ...SAMPLING_ROWS.flatMap(([, { fields, min, max, int }]) =>
    fields.map((field): [string, unknown[], unknown[]] => [
      field,
      [min, max],
      [min - 1, max + 1, 'hot', ...(int === undefined ? [] : [0.5])],
    ]),
  ),
  ['seed', [0, -(2 ** 63), 2 ** 53], [1.5, 2 ** 65, '7']],
  [
    'stop',
    ['x', times(64, 'x'), [], 'é'.repeat(128)],
    ['', [''], times(65, 'x'), 'é'.repeat(129), 5, [5], '\ud83d', ['x', 'a\udc4b']],
  ],
  [
    'stop_tokens',
    [[], ['x', 7, 999], times(128, 'x')],
    ['x', [''], ['é'.repeat(129)], ['a\udc4b'], times(129, 'x'), [-1], [1.5], [true]],
  ],
  ['stop_token_ids', [[0, 256], times(64, 1)], [[-1], [257], times(65, 1), 'x', [1.5]]],
  [
    'logit_bias',
    [{}, { 0: -100, 256: 100 }],
    [{ 0: 101 }, { x: 1 }, { '-1': 1 }, { 257: 1 }, { 99999999999: 1 }, [], 'x'],
  ],
  ['banned_tokens', [[], [256]], [[257], [-1], times(1025, 1)]],
  ['max_tokens', [-1, 1, 65_536], [-2, 65_537, 1.5]],
  ['stream', [false], ['yes', 1]],
  ['ignore_eos', [true], ['yes']],
  ['model', ['goose', ''], [5]],
]

test.each(EDGES)('%s: the limits pass, one beyond is a 400 that names it', async (name, good, bad) => {
  for (const [route, body] of [
    [CHAT, HELLO],
    [COMPLETIONS, { prompt: 'Hi' }],
  ] as const) {
    const { app, engine } = serve()
    for (const value of good) {
      const reply = await postTo(app, route, { ...body, [name]: value })
      expect(reply.statusCode, `${name}: ${JSON.stringify(value)} ${reply.body}`).toBe(200)
    }
    const served = engine.requests.length
    for (const value of bad) {
      const reply = await postTo(app, route, { ...body, [name]: value })
      expect(reply.statusCode, `${name}: ${JSON.stringify(value)}`).toBe(400)
      const { error } = reply.json()
      expect(error.param.split(/[.[]/)[0]).toBe(name)
      expect(error.message.startsWith(error.param)).toBe(true)
    }
    expect(engine.requests).toHaveLength(served)
  }
})

test('too many biases are refused', async () => {
  const { app } = serve()
  const reply = await postTo(app, CHAT, { ...HELLO, logit_bias: bias(1025) })
  expect(reply.json().error).toMatchObject({ param: 'logit_bias' })
})

test('numbers that JSON cannot hold are refused, not rounded', async () => {
  const { app } = serve()
  for (const number of ['1e309', '-1e309', 'NaN', 'Infinity']) {
    const payload = `{"messages":[{"role":"user","content":"x"}],"temperature":${number}}`
    const headers = { 'content-type': 'application/json' }
    const reply = await app.inject({ method: 'POST', url: CHAT, payload, headers })
    expect(reply.statusCode).toBe(400)
  }
})

test.each([
  [CHAT, {}, 'messages'],
  [CHAT, { messages: [] }, 'messages'],
  [CHAT, { messages: 'Hi' }, 'messages'],
  [CHAT, { messages: [{ content: 'Hi' }] }, 'messages[0].role'],
  [CHAT, { messages: [{ role: 'user', content: 5 }] }, 'messages[0].content'],
  [CHAT, { messages: times(4097, HELLO.messages[0]) }, 'messages'],
  [CHAT, { ...HELLO, top_logprobs: 21, logprobs: true }, 'top_logprobs'],
  [CHAT, { ...HELLO, max_tokens: 0 }, 'max_tokens'],
  [COMPLETIONS, {}, 'prompt'],
  [COMPLETIONS, { prompt: null }, 'prompt'],
  [COMPLETIONS, { prompt: [1, 'a'] }, 'prompt'],
  [COMPLETIONS, { prompt: times(513, 'a') }, 'prompt'],
  [COMPLETIONS, { prompt: [[257]] }, 'prompt'],
  [COMPLETIONS, { prompt: ['a', 5] }, 'prompt'],
  [COMPLETIONS, { prompt: [1, -5] }, 'prompt'],
  [COMPLETIONS, { prompt: 'a', logprobs: 21 }, 'logprobs'],
])('%s, body %#: a 400 names its field', async (route, body, param) => {
  const { app } = serve()
  const reply = await postTo(app, route, body)
  expect(reply.statusCode).toBe(400)
  expect(reply.json().error.param.replace(/\[.*/, '')).toBe(param.replace(/\[.*/, ''))
  expect(reply.json().error.type).toBe('invalid_request_error')
})

test('each error is reported once and clearly', async () => {
  const { app } = serve()
  const complain = async (fields: object) => (await postTo(app, CHAT, { ...HELLO, ...fields })).json().error.message
  expect(await complain({ temperature: 'hot' })).toBe('temperature: must be a number')
  expect(await complain({ n: 17 })).toBe('n: must be <= 16')
  expect(await complain({ stop: 5 })).toBe('stop: expected a string or a list of at most 64 strings')
  expect(await complain({ messages: 'hi' })).toBe('messages: must be an array')
  expect(await complain({ messages: [] })).toBe('messages: must have at least 1 item')
  expect(await complain({ stop: times(65, 'x') })).toBe('stop: must have at most 64 items')
  expect(await complain({ messages: [{ role: 'user', content: 7 }] })).toBe(
    'messages[0].content: expected a string or a list of content parts',
  )
  expect(await complain({ logit_bias: { x: 1 } })).toBe('logit_bias.x: expected token ids as the names of its fields')
  expect(await complain({ session_id: '' })).toBe(
    'session_id: expected 1 to 256 characters, none of them a control character or half of a surrogate pair',
  )
  expect(await complain({ session: { id: 'a', if_busy: 'now' } })).toBe(
    'session.if_busy: expected one of "wait", "conflict"',
  )
  expect(await complain({ session: { id: 'a', name: 'b' } })).toBe('session.name: no such field')
  expect((await postTo(app, CHAT, {})).json().error.message).toBe('messages: missing; it is required')
})

test('a prompt longer than the limit is a 413, in any form', async () => {
  const { app, engine } = serve()
  for (const [route, body] of [
    [CHAT, { messages: [{ role: 'user', content: 'x'.repeat(5000) }] }],
    [CHAT, { messages: [{ role: 'user', content: 'x'.repeat(500_000) }] }],
    [COMPLETIONS, { prompt: 'x'.repeat(5001) }],
    [COMPLETIONS, { prompt: times(5001, 1) }],
    [COMPLETIONS, { prompt: ['a', 'x'.repeat(5001)] }],
  ] as const) {
    const reply = await postTo(app, route, body)
    expect(reply.statusCode).toBe(413)
    expect(reply.json().error.code).toBe('too_large')
  }
  expect(engine.requests).toHaveLength(0)
})

test('prompts × n is bounded', async () => {
  const { app } = serve()
  const reply = await postTo(app, COMPLETIONS, { prompt: times(512, 'a'), n: 3 })
  expect(reply.statusCode).toBe(413)
  expect(reply.json().error.param).toBe('prompt')
})

test('the log-probabilities of a whole reply are limited', async () => {
  const { app, engine } = serve(undefined, { limits: { answerLogprobs: 120 } })
  const chat = { ...HELLO, logprobs: true, top_logprobs: 2, max_tokens: 10, n: 4 }
  const raw = { prompt: ['a', 'b'], logprobs: 2, max_tokens: 10, n: 2 }
  const served = async (url: string, body: object) => (await postTo(app, url, body)).statusCode
  for (const [url, body] of [
    [CHAT, chat],
    [COMPLETIONS, raw],
  ] as const) {
    expect(await served(url, body)).toBe(200)
    expect(await served(url, { ...body, max_tokens: 11, stream: true })).toBe(200)
    expect(await served(url, { ...body, max_tokens: 500, logprobs: null, top_logprobs: 0 })).toBe(200)
    const { length } = engine.requests
    for (const more of [{ max_tokens: 11 }, { n: 5 }]) {
      const reply = await postTo(app, url, { ...body, ...more })
      expect(reply.statusCode).toBe(413)
      expect(reply.json().error).toMatchObject({ param: 'logprobs', code: 'too_large' })
    }
    expect(engine.requests).toHaveLength(length)
  }
})

test('the log-probabilities of an echo are limited, whatever makes them many', async () => {
  const { app, engine } = serve(undefined, { limits: { promptLogprobs: 100 } })
  const echo = { prompt: times(25, 1), echo: true, logprobs: 3, max_tokens: 0 }
  const more = [{ prompt: times(26, 1) }, { prompt: [times(25, 1), [1]] }, { n: 2 }, { logprobs: 4 }]
  for (const one of more) {
    const reply = await postTo(app, COMPLETIONS, { ...echo, ...one })
    expect(reply.statusCode).toBe(413)
    expect(reply.json().error).toMatchObject({ param: 'logprobs', code: 'too_large' })
  }
  expect(engine.requests).toHaveLength(0)
  const fewer = [{}, { echo: false, max_tokens: 1, n: 16 }, { logprobs: null, n: 16 }]
  for (const one of fewer) {
    expect((await postTo(app, COMPLETIONS, { ...echo, ...one })).statusCode).toBe(200)
  }
})

const inject = (url: string, payload: string | Buffer, headers: Record<string, string> = {}) => {
  const { app } = serve()
  const all = { 'content-type': 'application/json', ...headers }
  return app.inject({ method: 'POST', url, payload, headers: all })
}

test('an object without a Content-Type is no body', async () => {
  const { app } = serve()
  const headers = { 'content-type': 'application/json' }
  const stop = await app.inject({ method: 'POST', url: '/v1/server/stop', headers })
  expect(stop.json()).toMatchObject({ stopped: [] })
  const gone = await app.inject({ method: 'DELETE', url: '/v1/sessions/talk', headers })
  expect(gone.json()).toMatchObject({ deleted: true })
  for (const url of [CHAT, COMPLETIONS]) {
    const reply = await app.inject({ method: 'POST', url, headers })
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error.message).toBe('the body is missing or not an object; expected {…} in JSON')
  }
})

test('bodies: size, depth, encoding, type', async () => {
  const large = await inject(CHAT, `"${'x'.repeat(8 * 2 ** 20)}"`)
  expect(large.statusCode).toBe(413)
  expect(large.json().error.message).toContain('larger than the 8 MiB')
  expect((await inject(CHAT, '['.repeat(1_000_000))).json().error.message).toContain('64 levels')
  const nested = (depth: number) => `${'['.repeat(depth)}"]]]\\"[[["${']'.repeat(depth)}`
  expect((await inject(CHAT, nested(64))).json().error.message).not.toContain('levels')
  expect((await inject(CHAT, nested(65))).json().error.message).toContain('levels')
  expect((await inject(CHAT, Buffer.from([0x22, 0xff, 0x22]))).json().error.message).toContain('UTF-8')
  expect((await inject(CHAT, '{"messages":')).json().error.message).toContain('not valid JSON')
  expect((await inject(CHAT, '{"__proto__":{}}')).statusCode).toBe(400)
  expect((await inject(CHAT, '{}', { 'content-encoding': 'gzip' })).statusCode).toBe(415)
  for (const type of ['text/plain', 'multipart/form-data']) {
    expect((await inject(CHAT, '{}', { 'content-type': type })).statusCode).toBe(415)
  }
  // curl sends a form by default, and a foreign page can send one without a preflight.
  const form = { 'content-type': 'application/x-www-form-urlencoded' }
  expect((await inject(CHAT, JSON.stringify(HELLO), form)).statusCode).toBe(200)
  for (const of of [{ origin: 'http://localhost' }, { 'sec-fetch-site': 'same-origin' }, { referer: 'http://a.b' }]) {
    expect((await inject(CHAT, JSON.stringify(HELLO), { ...form, ...of })).statusCode).toBe(415)
  }
  const { app } = serve()
  expect((await app.inject({ method: 'POST', url: CHAT })).statusCode).toBe(400)
  expect(
    (await app.inject({ method: 'POST', url: CHAT, payload: 'null', headers: { 'content-type': 'application/json' } }))
      .statusCode,
  ).toBe(400)
})
