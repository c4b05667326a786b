import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { describe, expect, test } from 'vitest'
import { contentsRoutes } from '../../src/api/lightning/contents.ts'
import { Row } from '../../src/api/lightning/row.ts'
import { LiveCalls, MAX_PAUSED } from '../../src/api/live-calls.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import { answer, byteCodec, endless } from '../helpers/fake-engine.ts'
import { CHAT, eventsOf, HELLO, postTo, serve, serveAlone } from './kit.ts'

const TWO = { contents: ['one', 'two'] }
const textOf = (request: GenerateRequest) => byteCodec.decode(request.prompt)
/** Answers with the prompt in capitals, and more. */
const echo = (request: GenerateRequest) => answer(request, `${textOf(request).toUpperCase()} 你好🙂!`)

/** The same, one event per step, as the engine delivers them. */
async function* stepwise(request: GenerateRequest) {
  for (const event of echo(request)) {
    yield event
    await delay(3)
  }
}

type Choice = { index: number; delta: { content?: string }; finish_reason?: string | null }
type Chunk = { object: string; choices: Choice[] }

/** The text of each row of a stream, and the chunks. */
function rowsOf(body: string): { texts: string[]; chunks: Chunk[] } {
  const events = eventsOf(body)
  expect(events.at(-1)).toBe('[DONE]')
  const chunks = events.slice(0, -1) as Chunk[]
  const texts: string[] = []
  for (const { choices } of chunks) {
    for (const { index, delta } of choices) texts[index] = (texts[index] ?? '') + (delta.content ?? '')
  }
  return { texts, chunks }
}

describe('one path, several dialects', () => {
  test.each([
    ['contents', { contents: ['hi'] }, 'rwkv7-batch'],
    ['messages', HELLO, /^chatcmpl-/],
    ['messages with empty contents', { ...HELLO, contents: null }, /^chatcmpl-/],
    ['contents with empty messages', { contents: ['hi'], messages: [] }, 'rwkv7-batch'],
  ])('%s', async (_name, body, id) => {
    const { app } = serve(echo)
    const reply = await postTo(app, CHAT, body)
    expect(reply.json().id).toEqual(typeof id === 'string' ? id : expect.stringMatching(id))
  })

  test('an empty list does not select another dialect', async () => {
    const { app, engine } = serve(echo)
    for (const extra of [{}, { params: { max_tokens: 7 } }]) {
      for (const contents of [undefined, []]) {
        const reply = await postTo(app, CHAT, { ...HELLO, ...extra, contents })
        expect(reply.statusCode, reply.body).toBe(200)
      }
    }
    // Each dialect has its own default.
    const presence = engine.requests.map(({ sampling }) => sampling.presencePenalty)
    expect(presence).toEqual([0, 0, 0.5, 0.5])
  })

  test('each dialect refuses in its own format', async () => {
    const { app } = serve(echo)
    const neither = await postTo(app, CHAT, {})
    expect(neither.statusCode).toBe(400)
    expect(neither.json().error).toMatchObject({ param: 'messages' })
    const wrong = await postTo(app, CHAT, { contents: [1] })
    expect(wrong.statusCode).toBe(400)
    expect(wrong.json()).toEqual({ error: 'contents[0]: must be a string' })
    const empty = await postTo(app, CHAT, { contents: [] })
    expect(empty.statusCode).toBe(400)
    expect(empty.json()).toEqual({ error: 'contents: Empty prompts list' })
    const unknown = await postTo(app, CHAT, { ...TWO, model: 'duck' })
    expect(unknown.statusCode).toBe(404)
  })

  test('a wrong password has the text that clients expect', async () => {
    const { app } = serve(echo, { keys: ['secret'] })
    for (const password of [undefined, 'wrong']) {
      const reply = await postTo(app, CHAT, { ...TWO, password })
      expect(reply.statusCode).toBe(401)
      expect(reply.json()).toEqual({ error: 'Unauthorized: invalid or missing password' })
    }
    expect((await postTo(app, CHAT, { ...TWO, password: 'secret' })).statusCode).toBe(200)
    const headers = { authorization: 'Bearer secret' }
    const bearer = await app.inject({ method: 'POST', url: CHAT, payload: TWO, headers })
    expect(bearer.statusCode).toBe(200)
  })
})

test('the reply without streaming', async () => {
  const { app } = serve((request) => answer(request, textOf(request), textOf(request) === 'two' ? 'length' : 'stop'))
  const reply = await postTo(app, CHAT, { ...TWO, model: 'rwkv7' })
  expect(reply.json()).toEqual({
    id: 'rwkv7-batch',
    object: 'chat.completion',
    model: 'rwkv7',
    choices: [
      { index: 0, message: { role: 'assistant', content: 'one' }, finish_reason: 'stop' },
      { index: 1, message: { role: 'assistant', content: 'two' }, finish_reason: 'length' },
    ],
  })
})

describe('the stream', () => {
  test.each([1, 2, 3, 8, 128, undefined])('chunk_size %s never changes the text', async (size) => {
    const { app } = serve(stepwise)
    const reply = await postTo(app, CHAT, { ...TWO, stream: true, chunk_size: size })
    const { texts, chunks } = rowsOf(reply.body)
    expect(texts).toEqual(['ONE 你好🙂!', 'TWO 你好🙂!'])
    for (const chunk of chunks) {
      expect(Object.keys(chunk)).toEqual(['object', 'choices'])
      expect(chunk.object).toBe('chat.completion.chunk')
      for (const choice of chunk.choices) expect(Object.keys(choice)).toEqual(['index', 'delta'])
    }
    // A byte is a token here: four of ASCII, then characters of 3, 3, 4 and 1.
    const numOfRow = chunks.flatMap(({ choices }) => choices).filter(({ index }) => index === 0)
    if (size === 128) expect(numOfRow).toHaveLength(1)
    const pieces = numOfRow.map(({ delta }) => delta.content)
    if (size === 8) expect(pieces).toEqual(['ONE 你好', '🙂!'])
    if (size === undefined) expect(pieces).toEqual(['ONE ', '你好', '🙂', '!'])
  })

  test('rows that advance together share an event', async () => {
    const { app } = serve(async function* (request) {
      yield { type: 'prompt', id: request.id, logprobs: null }
      for (const text of 'abc') {
        await delay(20)
        yield { type: 'text', id: request.id, index: 0, text, tokens: [1], logprobs: null }
      }
      for (const event of answer(request, '')) if (event.type === 'finish') yield event
    })
    const contents = ['1', '2', '3', '4']
    const reply = await postTo(app, CHAT, { contents, stream: true, chunk_size: 1 })
    const { texts, chunks } = rowsOf(reply.body)
    expect(texts).toEqual(['abc', 'abc', 'abc', 'abc'])
    expect(chunks.length).toBeLessThan(12)
    for (const { choices } of chunks) {
      const indices = choices.map(({ index }) => index)
      expect(indices).toEqual([...new Set(indices)].sort())
    }
  })

  test('an error within the stream is a string, and ends it', async () => {
    const { app } = serve(function* (request): Generator<EngineEvent> {
      yield { type: 'prompt', id: request.id, logprobs: null }
      yield { type: 'text', id: request.id, index: 0, text: 'a', tokens: [1], logprobs: null }
      const error = { code: 'kernel_failed', message: 'not finite' } as const
      yield { type: 'error', id: request.id, error }
    })
    const reply = await postTo(app, CHAT, { contents: ['x'], stream: true, chunk_size: 1 })
    const events = eventsOf(reply.body)
    expect(events).not.toContain('[DONE]')
    expect(events.at(-1)).toEqual({ error: expect.stringContaining('the model failed') })
  })
})

describe('defaults', () => {
  const asked = async (path: string, body: object) => {
    const { app, engine } = serve(echo)
    const reply = await postTo(app, path, body)
    expect(reply.statusCode).toBe(200)
    const { maxTokens, sampling, stop } = engine.requests[0]!
    const { temperature: t, topK: k, topP: p } = sampling
    const { presencePenalty, frequencyPenalty, penaltyDecay } = sampling
    return { maxTokens, t, k, p, penalties: [presencePenalty, frequencyPenalty, penaltyDecay], stop }
  }
  const CONTENTS = { maxTokens: 8192, t: 1, k: 50, p: 0.6, penalties: [2, 0.2, 0.996] }

  test.each([
    [CHAT, CONTENTS],
    ['/v2/chat/completions', CONTENTS],
    ['/big_batch/completions', { maxTokens: 8192, t: 1, k: 0, p: 1, penalties: [0, 0, 1] }],
    ['/v1/batch/completions', { maxTokens: 8192, t: 1, k: 20, p: 0.3, penalties: [2, 0.2, 0.996] }],
  ])('%s', async (path, expected) => {
    const got = await asked(path, { contents: ['x'], stream: false })
    // The byte vocabulary has no token for either text.
    const stop = { strings: ['\n\n', '\nUser:'], tokens: [], ignoreEos: false }
    expect(got).toEqual({ ...expected, stop })
  })

  test('values of the request are used, with the original ranges', async () => {
    const body = {
      contents: ['x'],
      max_tokens: 7,
      temperature: 0,
      top_k: -5,
      top_p: 7,
      alpha_presence: 0.8,
      alpha_frequency: 0.7,
      alpha_decay: 0.99,
      stop_tokens: [0, 11, '\nUser:', 24281],
      seed: 5,
    }
    expect(await asked(CHAT, body)).toEqual({
      maxTokens: 7,
      t: 0,
      k: 0,
      p: 1,
      penalties: [0.8, 0.7, 0.99],
      stop: { strings: ['\nUser:'], tokens: [0, 11], ignoreEos: false },
    })
    expect((await asked(CHAT, { contents: ['x'], stop_tokens: [] })).stop.strings).toEqual([])
  })

  test('no field is silently ignored', async () => {
    const { app } = serve(echo)
    for (const field of [{ tools: [{}] }, { n: 2 }, { logprobs: true }, { mirostat: 2 }]) {
      const reply = await postTo(app, CHAT, { ...TWO, ...field })
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error).toContain(Object.keys(field).at(-1))
    }
  })
})

test('only /v2 puts token 0 before a prompt, unless disabled', async () => {
  const { app, engine } = serve(echo)
  await postTo(app, CHAT, { contents: ['x'], pad_zero: true })
  await postTo(app, '/v2/chat/completions', { contents: ['x'] })
  await postTo(app, '/v2/chat/completions', { contents: ['x'], pad_zero: false })
  expect(engine.requests.map(({ prompt }) => [...prompt])).toEqual([[121], [0, 121], [121]])
})

test('/big_batch streams by default, and draws with uniform noise', async () => {
  const { app, engine } = serve(echo)
  const path = '/big_batch/completions'
  expect(rowsOf((await postTo(app, path, TWO)).body).texts).toHaveLength(2)
  expect(rowsOf((await postTo(app, path, { ...TWO, stream: true })).body).texts).toHaveLength(2)
  expect((await postTo(app, path, { ...TWO, stream: false })).json().choices).toHaveLength(2)
  await postTo(app, path, { ...TWO, noise: 0 })
  expect(engine.requests.at(-1)!.sampling.temperature).toBe(0)
  await postTo(app, path, { ...TWO, noise: 1.5, top_k: 1, temperature: 0.7 })
  expect(engine.requests.at(-1)!.sampling).toMatchObject({ noise: 1.5, temperature: 0.7, topK: 0, topP: 1 })
  const refused = await postTo(app, path, { ...TWO, noise: -1 })
  expect(refused.statusCode).toBe(400)
  expect(refused.json().error).toContain('noise')
  expect((await postTo(app, CHAT, { ...TWO, noise: 1.5 })).statusCode).toBe(200)
  expect(engine.requests.at(-1)!.sampling.noise).toBe(0)
})

test('/v1/batch/completions: an event per choice, one for the end, and counts if requested', async () => {
  const { app } = serve(echo)
  const path = '/v1/batch/completions'
  const whole = (await postTo(app, path, { ...TWO, report_metrics: true })).json()
  expect(whole).toMatchObject({ id: 'rwkv7-fast-batch', choices: [{ index: 0 }, { index: 1 }] })
  expect(whole.metrics).toMatchObject({ batch_size: 2, prompt_tokens: 6, completion_tokens: 32 })
  const { texts, chunks } = rowsOf((await postTo(app, path, { ...TWO, stream: true })).body)
  expect(texts).toEqual(['ONE 你好🙂!', 'TWO 你好🙂!'])
  for (const { choices } of chunks.slice(0, -1)) expect(choices).toHaveLength(1)
  expect(chunks.at(-1)!.choices).toEqual([
    { index: 0, delta: {}, finish_reason: 'stop' },
    { index: 1, delta: {}, finish_reason: 'stop' },
  ])
  expect((await postTo(app, path, TWO)).json().metrics).toBeUndefined()
})

test('wide batches are accepted up to the limit', async () => {
  const { app, engine } = serve(echo)
  const contents = Array.from({ length: 960 }, (_, i) => `row ${i}`)
  const reply = await postTo(app, CHAT, { contents })
  const choices = reply.json().choices as { index: number; message: { content: string } }[]
  expect(choices.map(({ index }) => index)).toEqual(contents.map((_, i) => i))
  expect(choices[959]!.message.content).toBe('ROW 959 你好🙂!')
  const sent = engine.requests.length
  const tooMany = { contents: [...contents, ...contents] }
  expect((await postTo(app, CHAT, tooMany)).statusCode).toBe(400)
  expect(engine.requests).toHaveLength(sent)
})

test('tokens are counted', async () => {
  const { app } = serve()
  const count = async (body: object) => (await postTo(app, '/v1/tokens/count', body)).json()
  expect(await count({ text: 'héllo' })).toEqual({ tokens: 6 })
  expect(await count({ text: '' })).toEqual({ tokens: 0 })
  expect(await count({ contents: ['ab', '', 'c'] })).toEqual({ tokens: 3 })
  expect(await count(HELLO)).toEqual({ tokens: 'User: Hi'.length })
  expect(await count({ text: 'a', ...HELLO })).toEqual({ error: expect.stringContaining('exactly one') })
})

describe('stop, pause and resume', () => {
  const path = '/v1/server'
  /** Counts up from the end of the prompt, without end. */
  async function* counting(request: GenerateRequest, signal: AbortSignal | undefined) {
    yield { type: 'prompt', id: request.id, logprobs: null } as const
    let at = Number(/\d$/.exec(textOf(request))?.[0] ?? 0)
    while (signal?.aborted !== true) {
      await delay(2)
      const text = String(++at % 10)
      const tokens = [...byteCodec.encode(text)]
      yield { type: 'text', id: request.id, index: 0, text, tokens, logprobs: null } as const
    }
  }
  const active = async (app: FastifyInstance) =>
    (await app.inject({ url: `${path}/status` })).json().active_requests as object[]
  const settle = async (app: FastifyInstance, count: number) => {
    await expect.poll(() => active(app).then(({ length }) => length)).toBe(count)
    await delay(30)
  }

  test('a stopped call fails with 409, other calls continue', async () => {
    const { app, engine } = serveAlone(endless)
    const first = postTo(app, CHAT, { ...TWO, request_id: 'mine' })
    const second = postTo(app, CHAT, { ...TWO, stream: true })
    await settle(app, 2)
    const status = (await app.inject({ url: `${path}/status` })).json()
    expect(status.active_requests).toHaveLength(2)
    expect(status.active_request).toMatchObject({ request_id: 'mine', rows: 2, path: CHAT })
    const stopped = await postTo(app, `${path}/stop`, { request_id: 'mine' })
    expect(stopped.json()).toEqual({ ok: true, stopped: ['mine'], active_request: 'mine' })
    expect((await first).statusCode).toBe(409)
    expect((await first).json()).toEqual({ error: 'Request cancelled' })
    expect(engine.cancelled).toHaveLength(2)
    expect((await postTo(app, `${path}/stop`, {})).json().stopped).toHaveLength(1)
    expect(eventsOf((await second).body).at(-1)).toEqual({ error: 'Request cancelled' })
    expect((await postTo(app, `${path}/stop`, {})).json()).toMatchObject({ ok: false, stopped: [] })
  })

  test('a paused call continues where it stopped', async () => {
    const { app, engine } = serveAlone(counting)
    const contents = ['from 0', 'from 5']
    const open = postTo(app, CHAT, { contents, stream: true, max_tokens: 500 })
    await settle(app, 1)
    const paused = (await postTo(app, `${path}/pause`, {})).json()
    expect(paused).toMatchObject({ ok: true, paused: true })
    const { body: shown } = await open
    expect(eventsOf(shown).slice(-2)).toEqual([
      {
        object: 'chat.completion.chunk',
        choices: [0, 1].map((index) => ({ index, delta: { content: '' } })),
        paused: true,
        request_id: paused.request_id,
      },
      '[DONE]',
    ])
    const before = rowsOf(shown).texts
    expect(before[0]).toMatch(/^1/)
    const status = (await app.inject({ url: `${path}/status` })).json()
    expect(status.paused_requests).toEqual([{ request_id: paused.request_id, rows: 2 }])
    expect(status.active_requests).toEqual([])

    const resumed = postTo(app, `${path}/resume`, { request_id: paused.request_id })
    await settle(app, 1)
    const [again] = engine.requests.slice(2)
    expect(textOf(again!)).toBe(`from 0${before[0]}`)
    expect(again!.maxTokens).toBe(500 - before[0]!.length)
    await postTo(app, `${path}/pause`, { request_id: paused.request_id })
    const after = rowsOf((await resumed).body).texts
    const digits = (before[1]! + after[1]!).split('').map(Number)
    expect(digits).toEqual(digits.map((_, i) => (6 + i) % 10))
    await postTo(app, `${path}/resume`, { request_id: 'nothing' }).then((reply) => {
      expect(reply.statusCode).toBe(404)
      expect(reply.json()).toEqual({ error: 'Paused request not found' })
    })
  })

  test('a failed resume leaves the call paused, and no other call gets its name', async () => {
    let isFull = false
    const { app } = serveAlone((request, signal) => {
      if (isFull) throw new SkeinError('queue_full', 'too many requests wait')
      return counting(request, signal)
    })
    const mine = { contents: ['from 0'], request_id: 'mine' }
    const open = postTo(app, CHAT, mine)
    await settle(app, 1)
    await postTo(app, `${path}/pause`, { request_id: 'mine' })
    await open
    const resume = () => postTo(app, `${path}/resume`, { request_id: 'mine' })
    const pausedIds = async () => (await app.inject({ url: `${path}/status` })).json().paused_requests as object[]
    isFull = true
    expect((await resume()).statusCode).toBe(429)
    expect(await pausedIds()).toEqual([{ request_id: 'mine', rows: 1 }])
    isFull = false
    const other = await postTo(app, CHAT, mine)
    expect(other.statusCode).toBe(409)
    expect(other.json().error).toContain('is paused')
    const resumed = resume()
    await settle(app, 1)
    expect(await pausedIds()).toEqual([])
    expect((await resume()).statusCode).toBe(404)
    await postTo(app, `${path}/pause`, { request_id: 'mine' })
    await resumed
    const stopped = await postTo(app, `${path}/stop`, { request_id: 'mine' })
    expect(stopped.json()).toMatchObject({ ok: true, stopped: ['mine'] })
    expect(await pausedIds()).toEqual([])
  })

  test('an answer that has all its tokens gets no more', async () => {
    // Its end is not reported yet: with durable turns that takes a while.
    const { app, engine } = serveAlone(async function* (request, signal) {
      yield* [...answer(request, 'abc')].slice(0, -1)
      while (signal?.aborted !== true) await delay(1)
    })
    const body = { contents: ['x'], stream: true, max_tokens: 3, chunk_size: 1, request_id: 'mine' }
    const open = postTo(app, CHAT, body)
    await settle(app, 1)
    await postTo(app, `${path}/pause`, { request_id: 'mine' })
    expect(rowsOf((await open).body).texts).toEqual(['abc'])
    const resume = () => postTo(app, `${path}/resume`, { request_id: 'mine' })
    expect(eventsOf((await resume()).body)).toEqual(['[DONE]'])
    expect(engine.requests).toHaveLength(1)
    expect((await resume()).statusCode).toBe(404)
  })

  test('a paused call without streaming says how to continue', async () => {
    const { app } = serveAlone(counting)
    const whole = postTo(app, CHAT, { contents: ['0'], request_id: 'r1' })
    await settle(app, 1)
    await postTo(app, `${path}/pause`, { request_id: 'r1' })
    expect((await whole).statusCode).toBe(409)
    expect((await whole).json().error).toContain('request_id r1')
    expect((await postTo(app, `${path}/pause`, {})).statusCode).toBe(404)
  })

  test('text that a paused call had drawn but not sent comes first when it continues', async () => {
    // The first row ends at once, the second never, and a reply without streaming has sent neither.
    let isFull = false
    const { app, engine } = serveAlone((request, signal) => {
      if (isFull) throw new SkeinError('queue_full', 'too many requests wait')
      return textOf(request) === 'short' ? answer(request, 'abc') : counting(request, signal)
    })
    const whole = postTo(app, CHAT, { contents: ['short', '0'], request_id: 'r1', max_tokens: 500 })
    await settle(app, 1)
    await postTo(app, `${path}/pause`, { request_id: 'r1' })
    expect((await whole).statusCode).toBe(409)
    const resume = () => postTo(app, `${path}/resume`, { request_id: 'r1' })
    isFull = true
    expect((await resume()).statusCode).toBe(429)
    isFull = false
    const resumed = resume()
    await settle(app, 1)
    const shown = textOf(engine.requests.at(-1)!).slice(1)
    expect(shown).not.toBe('')
    await postTo(app, `${path}/pause`, { request_id: 'r1' })
    const [short, digits] = rowsOf((await resumed).body).texts
    expect(short).toBe('abc')
    expect(digits!.startsWith(shown)).toBe(true)
    expect(digits).toBe([...digits!].map((_, i) => (i + 1) % 10).join(''))
    // It was sent, so it does not come a second time.
    const again = resume()
    await settle(app, 1)
    await postTo(app, `${path}/stop`, { request_id: 'r1' })
    expect((await again).body).not.toContain('abc')
  })

  test('keys do not see the calls of others', async () => {
    const { app, engine } = serve(endless, { keys: ['a', 'b'] })
    const open = postTo(app, CHAT, { ...TWO, password: 'a', request_id: 'x' })
    await expect.poll(() => engine.requests.length).toBe(2)
    for (const how of ['stop', 'pause', 'resume']) {
      const reply = await postTo(app, `${path}/${how}`, { password: 'b', request_id: 'x' })
      expect(reply.json().ok).not.toBe(true)
    }
    const stopped = await postTo(app, `${path}/stop`, { password: 'a' })
    expect(stopped.json().stopped).toEqual(['x'])
    expect((await open).statusCode).toBe(409)
  })
})

test('a row paused inside a character draws that token again and does not send its text twice', () => {
  // One token of "x" and the first two bytes of "你", then the rest.
  const bytes = [new Uint8Array(0), Buffer.from([0x78, 0xe4, 0xbd]), Buffer.from([0xa0])]
  const codec = { ...byteCodec, bytesOf: (token: number) => bytes[token]! }
  const request = { prompt: Int32Array.of(7), maxTokens: 10 } as unknown as GenerateRequest
  const row = new Row(0, request)
  row.take({ type: 'text', id: '', index: 0, text: 'x', tokens: [1], logprobs: null })
  const { request: next, overlap } = row.paused(codec)
  expect([...next.prompt]).toEqual([7])
  expect(overlap).toBe('x')
  const again = new Row(0, next, overlap)
  again.take({ type: 'text', id: '', index: 0, text: 'x', tokens: [1], logprobs: null })
  again.take({ type: 'text', id: '', index: 0, text: '你', tokens: [2], logprobs: null })
  expect(again.text).toBe('你')
  // What was sent before the first pause counts in the second, also if nothing came in between.
  const second = again.paused(codec)
  expect([[...second.request.prompt], second.request.maxTokens]).toEqual([[7, 1, 2], 8])
  expect(second.overlap).toBe('')
  const untouched = new Row(0, next, overlap).paused(codec)
  expect([[...untouched.request.prompt], untouched.overlap]).toEqual([[7], 'x'])
})

test('paused calls are limited per tenant', () => {
  const live = new LiveCalls()
  const call = { path: CHAT, model: 'm', chunkSize: 1, rows: [], owed: [] }
  live.keep({ ...call, tenant: 'other', id: 'x' })
  for (let i = 0; i <= MAX_PAUSED; i++) live.keep({ ...call, tenant: 't', id: `${i}` })
  expect(live.paused('t')).toHaveLength(MAX_PAUSED)
  expect(live.pausedOf('t', '0')).toBeNull()
  expect(live.pausedOf('other', 'x')).not.toBeNull()
})

test('every route of the list declares what it supports', () => {
  const routes = contentsRoutes(DEFAULT_LIMITS, new LiveCalls())
  expect(routes.filter(({ claims }) => claims).map(({ path }) => path)).toEqual([CHAT])
  expect(routes.every(({ access }) => access === 'password')).toBe(true)
})
