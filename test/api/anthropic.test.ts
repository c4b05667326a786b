/** Anthropic's own client, unchanged, against a listening gateway. */
import Anthropic from '@anthropic-ai/sdk'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { promptOf } from '../helpers/fake-engine.ts'
import { scripted, serve, urlOf } from './kit.ts'

const KEY = 'sk-right'

const { app, engine } = serve(scripted, { keys: [KEY] })
let client: Anthropic
let baseURL: string
beforeAll(async () => {
  baseURL = await urlOf(app)
  client = new Anthropic({ apiKey: KEY, baseURL, maxRetries: 0 })
})
afterAll(() => app.close())

const last = () => engine.requests.at(-1)!
const ask = (content: string) => ({ model: 'goose', max_tokens: 100, messages: [{ role: 'user' as const, content }] })
const tools = [
  {
    name: 'weather',
    description: 'The weather of a place',
    input_schema: { type: 'object' as const, properties: { place: { type: 'string' } } },
  },
]

describe('messages', () => {
  test('without streaming', async () => {
    const reply = await client.messages.create({
      ...ask('Hi'),
      system: [{ type: 'text', text: 'Be kind.' }],
      stop_sequences: ['END'],
      // From the types of older clients.
      ...{ temperature: 0.5 },
    })
    expect(promptOf(last())).toBe('System: Be kind.\n\nUser: Hi\n\nAssistant:')
    expect(last()).toMatchObject({
      maxTokens: 100,
      sampling: { temperature: 0.5 },
      stop: { strings: expect.arrayContaining(['END']) },
    })
    expect(reply).toMatchObject({
      type: 'message',
      role: 'assistant',
      model: 'goose',
      stop_reason: 'end_turn',
      stop_sequence: null,
      usage: { input_tokens: 38, cache_read_input_tokens: 0 },
    })
    // Vercel's @ai-sdk/anthropic refuses `citations: null`.
    expect(reply.content).toEqual([{ type: 'text', text: 'Yes, 世界' }])
    expect(reply.id).toMatch(/^msg_[0-9a-f]{32}$/)
    expect((await client.messages.create(ask('LONG'))).stop_reason).toBe('max_tokens')
  })

  test('streamed, by hand and with the SDK helper', async () => {
    const types: string[] = []
    for await (const event of await client.messages.create({ ...ask('Hi'), stream: true })) {
      types.push(event.type)
    }
    const once = [...new Set(types)]
    expect(once).toEqual([
      'message_start',
      'content_block_start',
      'content_block_delta',
      'content_block_stop',
      'message_delta',
      'message_stop',
    ])
    const final = await client.messages.stream(ask('Hi')).finalMessage()
    expect(final.content).toMatchObject([{ type: 'text', text: 'Yes, 世界' }])
    expect(final.usage.output_tokens).toBeGreaterThan(5)
  })

  test('thoughts are blocks, and can be sent back', async () => {
    const thinking = { type: 'enabled', budget_tokens: 1024 } as const
    const { data, response } = await client.messages.create({ ...ask('Hi'), max_tokens: 2000, thinking }).withResponse()
    expect(data.content).toMatchObject([
      { type: 'thinking', thinking: 'Hm.\n' },
      { type: 'text', text: 'Yes, 世界' },
    ])
    expect(response.headers.get('warnings')).toContain('budget_tokens')
    const streamed = await client.messages.stream({ ...ask('Hi'), max_tokens: 2000, thinking }).finalMessage()
    expect(streamed.content).toEqual(
      data.content.map((block) => (block.type === 'text' ? { type: 'text', text: block.text } : block)),
    )
    await client.messages.create({
      ...ask('Hi'),
      messages: [
        { role: 'user', content: 'Hi' },
        { role: 'assistant', content: data.content },
        { role: 'user', content: 'More' },
      ],
    })
    expect(promptOf(last())).toBe('User: Hi\n\nAssistant: Yes, 世界\n\nUser: More\n\nAssistant:')
  })
})

describe('tools', () => {
  test('a loop: call, result, answer', async () => {
    const first = await client.messages.create({ ...ask('Weather?'), tools })
    expect(promptOf(last())).toContain('"name":"weather"')
    expect(first.stop_reason).toBe('tool_use')
    expect(first.content).toMatchObject([
      { type: 'text', text: 'I look.' },
      { type: 'tool_use', name: 'weather', input: { place: 'Oslo' } },
    ])
    const call = first.content[1] as Anthropic.ToolUseBlock // as the previous line has shown
    const second = await client.messages.create({
      ...ask(''),
      tools,
      messages: [
        { role: 'user', content: 'Weather?' },
        { role: 'assistant', content: first.content },
        {
          role: 'user',
          content: [{ type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: '-5' }] }],
        },
      ],
    })
    expect(promptOf(last())).toContain('User: Function output:\n-5')
    expect(second.content).toMatchObject([{ type: 'text', text: 'It is cold.' }])
    expect(second.stop_reason).toBe('end_turn')
  })

  test('streamed: the helper assembles the arguments', async () => {
    const final = await client.messages.stream({ ...ask('Weather?'), tools }).finalMessage()
    expect(final.content[1]).toMatchObject({ type: 'tool_use', input: { place: 'Oslo' } })
    expect(final.stop_reason).toBe('tool_use')
  })

  test('tool_choice restricts the answer', async () => {
    await client.messages.create({ ...ask('Hi'), tools, tool_choice: { type: 'any' } })
    expect(last().constraint).toBeDefined()
    await client.messages.create({ ...ask('Hi'), tools, tool_choice: { type: 'none' } })
    expect(last().constraint).toBeUndefined()
  })
})

test('the token count equals that of the prompt', async () => {
  const { input_tokens } = await client.messages.countTokens({ ...ask('Hi'), tools })
  await client.messages.create({ ...ask('Hi'), tools })
  expect(input_tokens).toBe(last().prompt.length)
})

test('models are listed in both shapes', async () => {
  const { data } = await client.models.list()
  expect(data).toMatchObject([{ id: 'goose', type: 'model', display_name: 'goose' }])
})

describe('errors', () => {
  test('error classes, before and within a stream', async () => {
    const other = new Anthropic({ apiKey: 'wrong', baseURL, maxRetries: 0 })
    await expect(other.messages.create(ask('Hi'))).rejects.toBeInstanceOf(Anthropic.AuthenticationError)
    const bearer = new Anthropic({ authToken: KEY, apiKey: null, baseURL, maxRetries: 0 })
    expect((await bearer.messages.create(ask('Hi'))).type).toBe('message')
    await expect(client.messages.create({ ...ask('Hi'), model: 'duck' })).rejects.toBeInstanceOf(
      Anthropic.NotFoundError,
    )
    await expect(client.messages.create(ask('FULL'))).rejects.toBeInstanceOf(Anthropic.RateLimitError)
    await expect(client.messages.stream(ask('MID')).finalMessage()).rejects.toThrow('the model failed on this request')
  })

  test.each([
    ['an image', { messages: [{ role: 'user', content: [{ type: 'image' }] }] }, /messages\[0\]\.content\[0\]/],
    ['a prefill', { messages: [{ role: 'assistant', content: '{' }] }, /an answer is not continued/],
    ['a role', { messages: [{ role: 'bot', content: '{' }] }, /messages\[0\]\.role/],
    ['a tool of Anthropic’s', { tools: [{ type: 'bash_20250124', name: 'bash' }] }, /tools\[0\]\.type/],
    ['no such tool', { tools, tool_choice: { type: 'tool', name: 'x' } }, /tool_choice\.name/],
    ['a call of no tool', { tool_choice: { type: 'any' } }, /no tools to choose from/],
    ['twins', { tools: [...tools, ...tools] }, /two of them/],
    ['too many', { tools: Array.from({ length: 257 }, (_, i) => ({ name: `t${i}` })) }, /256/],
    ['a strict schema', { tools: [{ name: 'a', strict: true, input_schema: { not: {} } }] }, /input_schema\.not/],
    ['a container', { container: 'x' }, /container/],
    ['no limit', { max_tokens: 0 }, /max_tokens/],
  ])('%s is refused by name', async (_what, fields, message) => {
    const reply = await app.inject({
      method: 'POST',
      url: '/v1/messages',
      headers: { 'x-api-key': KEY, 'anthropic-version': '2023-06-01' },
      payload: { ...ask('Hi'), ...fields },
    })
    expect(reply.statusCode).toBe(400)
    expect(reply.json()).toEqual({
      type: 'error',
      error: { type: 'invalid_request_error', message: expect.stringMatching(message) },
    })
  })

  test('message threads are refused as their client expects it, which then sends all messages', async () => {
    const reply = await app.inject({
      method: 'POST',
      url: '/v1/messages',
      headers: { 'x-api-key': KEY },
      payload: { ...ask('Hi'), thread: { type: 'continue', previous_message_id: 'msg_1' } },
    })
    expect(reply.statusCode).toBe(400)
    const details = { error_code: 'thread_unsupported_request', unsupported: ['thread'] }
    expect(reply.json().error).toMatchObject({
      message: expect.stringMatching(/^thread: .*send all messages/),
      details,
    })
  })

  test('max_tokens above the limit and unknown fields get a warning', async () => {
    const reply = await app.inject({
      method: 'POST',
      url: '/v1/messages',
      headers: { 'x-api-key': KEY },
      payload: { ...ask('Hi'), max_tokens: 200_000, stop_sequence: ['x'] },
    })
    expect(reply.statusCode).toBe(200)
    expect(reply.headers.warnings).toMatch(/did you mean stop_sequences\?.*at most 65536/)
    expect(last().maxTokens).toBe(65_536)
  })
})
