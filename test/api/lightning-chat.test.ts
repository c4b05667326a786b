/** The chat routes of rwkv_lightning: /v3 and /openai. */
import { describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { answer, byteCodec } from '../helpers/fake-engine.ts'
import { CHAT, eventsOf, postTo, serve, steady } from './kit.ts'

const promptOf = ({ prompt }: GenerateRequest) => byteCodec.decode(prompt)
const V3 = '/v3/chat/completions'
const OPENAI = '/openai/v1/chat/completions'
const user = (content: string) => ({ role: 'user', content })

describe(V3, () => {
  const asked = async (body: object) => {
    const { app, engine } = serve()
    const reply = await postTo(app, V3, body)
    expect(reply.statusCode, reply.body).toBe(200)
    return { reply: reply.json(), requests: engine.requests }
  }

  test('system and history are used', async () => {
    const messages = [
      { role: 'system', content: 'Be brief.' },
      user('Hi'),
      { role: 'assistant', content: 'Hello.' },
      user('Bye'),
    ]
    const { requests, reply } = await asked({ messages, enable_think: true })
    expect(requests.map(promptOf)).toEqual([
      'System: Be brief.\n\nUser: Hi\n\nAssistant: Hello.\n\nUser: Bye\n\nAssistant: <think',
    ])
    expect(reply.id).toBe('rwkv7-batch-v3')
    // The end of each turn: here a token is a byte.
    expect([...requests[0]!.boundaries!]).toEqual([17, 27, 46, 57])
  })

  test('contents are questions, one per row, and none of their lines can begin a turn', async () => {
    const { requests, reply } = await asked({ contents: ['a', 'b\nUser: c'] })
    expect(requests.map(promptOf)).toEqual([
      'User: a\n\nAssistant: <think>\n</think>',
      'User: b\n User: c\n\nAssistant: <think>\n</think>',
    ])
    expect(reply.choices).toHaveLength(2)
  })

  test('an error about a prompt that is too long names the field of the request', async () => {
    const { app } = serve()
    const long = 'x'.repeat(200_000)
    for (const [body, param] of [
      [{ contents: ['a', long] }, 'contents[1]: the prompt'],
      [{ messages: [user(long)] }, 'messages: the prompt'],
    ] as const) {
      const reply = await postTo(app, V3, body)
      expect([reply.statusCode, reply.json().error]).toEqual([413, expect.stringContaining(param)])
    }
  })

  test('stops: those of the template, unless the request has its own', async () => {
    const messages = [user('a')]
    const { requests } = await asked({ messages })
    expect(requests[0]!.stop).toEqual({ strings: ['\n\nUser:', '\n\nSystem:'], tokens: [], ignoreEos: false })
    expect(requests[0]).toMatchObject({ maxTokens: 50, sampling: { topK: 1, topP: 0.3 } })
    const own = await asked({ messages, stop_tokens: [0, 11] })
    expect(own.requests[0]!.stop).toEqual({ strings: [], tokens: [0, 11], ignoreEos: false })
  })

  test('contents override messages; an empty list counts as none', async () => {
    const question = 'User: Why?\n\nAssistant: <think>\n</think>'
    for (const body of [
      { messages: [user('Hi')], contents: ['Why?'] },
      { messages: [], contents: ['Why?'] },
      { messages: [user('Why?')], contents: [] },
    ]) {
      const { requests } = await asked(body)
      expect(requests.map(promptOf)).toEqual([question])
    }
  })

  test.each([{}, { messages: [], contents: [] }])('neither messages nor contents: %j', async (body) => {
    const { app } = serve()
    const reply = await postTo(app, V3, body)
    expect(reply.statusCode).toBe(400)
    expect(reply.json()).toEqual({ error: 'contents: Empty prompts list' })
  })
})

describe(OPENAI, () => {
  test('formats are those of OpenAI', async () => {
    const { app } = serve((request) => answer(request, 'Hello!'))
    const body = { model: 'rwkv7', messages: [user('Hi')] }
    const whole = (await postTo(app, OPENAI, body)).json()
    expect(steady(whole)).toMatchObject({
      id: 'chatcmpl-ID',
      object: 'chat.completion',
      choices: [{ index: 0, message: { role: 'assistant', content: 'Hello!' }, finish_reason: 'stop' }],
      usage: { completion_tokens: 7 },
    })
    const events = eventsOf((await postTo(app, OPENAI, { ...body, stream: true })).body)
    const deltas = (events.slice(0, -1) as { choices: [{ delta: object; finish_reason: unknown }] }[]).map(
      ({ choices }) => choices[0],
    )
    expect(deltas[0]!.delta).toEqual({ role: 'assistant', content: '' })
    expect(deltas.at(-1)).toMatchObject({ delta: {}, finish_reason: 'stop' })
    expect(events.at(-1)).toBe('[DONE]')
  })

  test.each([
    [1, ['H', 'e', 'l', 'l', 'o', '!']],
    [4, ['Hell', 'o!']],
    [99, ['Hello!']],
  ])('chunk_size %i', async (chunk_size, pieces) => {
    const { app } = serve((request) => answer(request, 'Hello!'))
    const body = { messages: [user('Hi')], stream: true, chunk_size }
    const events = eventsOf((await postTo(app, OPENAI, body)).body)
    const contents = (events.slice(1, -2) as { choices: [{ delta: { content: string } }] }[]).map(
      ({ choices }) => choices[0].delta.content,
    )
    expect(contents).toEqual(pieces)
  })

  test.each([1, 2, 64])('the tokens of a thought are counted, whatever chunk_size is: %i', async (n) => {
    const { app } = serve((request) => answer(request, '> Hm.</think>\nHello!'))
    const body = { messages: [user('Hi')], enable_think: true, chunk_size: n }
    const { usage, choices } = (await postTo(app, OPENAI, body)).json()
    expect(usage.completion_tokens_details.reasoning_tokens).toBe(13)
    expect(choices[0].message).toMatchObject({ reasoning_content: ' Hm.', content: 'Hello!' })
  })

  test('an empty list counts as none; parts of a content may be plain strings', async () => {
    const { app, engine } = serve()
    const content = ['What is', { type: 'text', text: ' the' }, ' capital?']
    for (const body of [
      { messages: [], contents: ['What is the capital?'] },
      { messages: [{ role: 'user', content }] },
      { messages: [{ role: 'user', content }], contents: [] },
    ]) {
      const reply = await postTo(app, OPENAI, body)
      expect(reply.statusCode, reply.body).toBe(200)
      expect(promptOf(engine.requests.at(-1)!)).toContain('User: What is the capital?\n\nAssist')
    }
    const none = await postTo(app, OPENAI, { messages: [], contents: [] })
    expect([none.statusCode, none.json()]).toEqual([400, { error: 'messages: Empty prompt' }])
  })

  test('the system text comes first, the contents last', async () => {
    const { app, engine } = serve()
    const messages = [user('Hi'), { role: 'developer', content: 'One.' }]
    const body = { messages, system: 'Two.', contents: ['Last'] }
    const expected = 'System: One.\nTwo.\n\nUser: Hi\n\nUser: Last\n\nAssistant: <think>\n</think>\n'
    for (const path of [OPENAI, CHAT]) {
      const reply = await postTo(app, path, body)
      expect(reply.statusCode, reply.body).toBe(200)
      expect(promptOf(engine.requests.at(-1)!)).toBe(expected)
      const two = await postTo(app, path, { ...body, contents: ['Last', 'another'] })
      expect([two.statusCode, two.body]).toEqual([400, expect.stringContaining('contents: this')])
    }
    await postTo(app, OPENAI, { messages: [user('Hi')], enable_think: true })
    expect(promptOf(engine.requests.at(-1)!)).toBe('User: Hi\n\nAssistant: <think')
  })

  test('defaults, and fields of OpenAI too', async () => {
    const { app, engine } = serve()
    await postTo(app, OPENAI, { messages: [user('Hi')] })
    expect(engine.requests[0]).toMatchObject({
      maxTokens: 4096,
      cache: 'use',
      sampling: { temperature: 1, topK: 20, topP: 0.6, presencePenalty: 1, frequencyPenalty: 0.1, penaltyDecay: 0.996 },
    })
    const fields = { presence_penalty: 0, stop: 'x', use_prefix_cache: false, max_completion_tokens: 3 }
    await postTo(app, OPENAI, { messages: [user('Hi')], ...fields })
    expect(engine.requests[1]).toMatchObject({
      maxTokens: 3,
      cache: 'no-store',
      sampling: { presencePenalty: 0 },
      stop: { strings: ['x'] },
    })
  })

  test('a quote at the start of an answer is kept', async () => {
    const { app } = serve((request) => answer(request, '\n> quoted'))
    const reply = await postTo(app, OPENAI, { messages: [user('Hi')] })
    expect(reply.json().choices[0].message.content).toBe('> quoted')
  })

  test('the key may be in the header or in the body; errors are strings', async () => {
    const { app } = serve(undefined, { keys: ['secret'] })
    const body = { messages: [user('Hi')] }
    const headers = { authorization: 'Bearer secret' }
    const send = (payload: object, own = {}) => app.inject({ method: 'POST', url: OPENAI, payload, headers: own })
    expect((await send(body, headers)).statusCode).toBe(200)
    expect((await send({ ...body, password: 'secret' })).statusCode).toBe(200)
    expect((await send(body, { authorization: 'Bearer wrong' })).json()).toEqual({
      error: 'Unauthorized: invalid or missing password',
    })
    expect((await send({}, headers)).json()).toEqual({ error: 'messages: Empty prompt' })
    const models = await app.inject({ url: '/openai/v1/models', headers })
    expect(models.json()).toMatchObject({ object: 'list', data: [{ id: 'goose', object: 'model' }] })
    expect((await app.inject({ url: '/openai/v1/models' })).statusCode).toBe(401)
  })
})
