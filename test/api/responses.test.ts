/**
 * The Responses API with the official OpenAI client: formats with a scripted engine, conversations with the demo model.
 */

import type { FastifyInstance } from 'fastify'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { answer, promptOf } from '../helpers/fake-engine.ts'
import { hasDemo, serveDemo } from './demo.ts'
import { scripted, serve } from './kit.ts'
import { openAiOf } from './openai.ts'

describe('formats', () => {
  const { app, engine } = serve(scripted)
  let client: OpenAI
  beforeAll(async () => {
    client = await openAiOf(app, 'none')
  })
  afterAll(() => app.close())
  const last = () => engine.requests.at(-1)!
  const ask = (input: string) => ({ model: 'goose', input, store: false })
  const tools = [
    {
      type: 'function' as const,
      name: 'weather',
      description: 'The weather of a place',
      parameters: { type: 'object', properties: { place: { type: 'string' } } },
      strict: true,
    },
  ]

  test('without streaming', async () => {
    const reply = await client.responses.create({
      ...ask('Hi'),
      instructions: 'Be kind.',
      metadata: { a: 'b' },
      temperature: 0.5,
    })
    expect(promptOf(last())).toBe('System: Be kind.\n\nUser: Hi\n\nAssistant:')
    expect(last()).toMatchObject({ maxTokens: 4096, sampling: { temperature: 0.5 } })
    expect(last().session).toBeUndefined()
    expect(reply.output_text).toBe('Yes, 世界')
    expect(reply).toMatchObject({
      object: 'response',
      status: 'completed',
      metadata: { a: 'b' },
      output: [{ type: 'message', role: 'assistant', status: 'completed' }],
      usage: { input_tokens: 38, output_tokens: expect.any(Number) },
    })
    const cut = await client.responses.create({ ...ask('LONG'), max_output_tokens: 5 })
    expect(cut).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      output: [{ status: 'incomplete' }],
    })
  })

  test('streamed, by hand and with the helper', async () => {
    const events = []
    for await (const event of await client.responses.create({ ...ask('Hi'), stream: true })) {
      events.push(event)
    }
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_event, i) => i))
    expect([...new Set(events.map(({ type }) => type))]).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ])
    const final = await client.responses.stream(ask('Hi')).finalResponse()
    expect(final.output_text).toBe('Yes, 世界')
  })

  test('a thought is an item', async () => {
    const asked = { ...ask('Hi'), reasoning: { effort: 'low' as const } }
    const reply = await client.responses.create(asked)
    expect(promptOf(last())).toBe('User: Hi (think a bit)\n\nAssistant: <think')
    expect(reply.output).toMatchObject([
      { type: 'reasoning', content: [{ type: 'reasoning_text', text: 'Hm.\n' }], summary: [] },
      { type: 'message' },
    ])
    expect(reply.usage!.output_tokens_details.reasoning_tokens).toBeGreaterThan(2)
    const final = await client.responses.stream(asked).finalResponse()
    expect(final.output.map(({ type }) => type)).toEqual(['reasoning', 'message'])
  })

  test('tools: a call, its result, the answer', async () => {
    const first = await client.responses.create({ ...ask('Weather?'), tools })
    expect(first.output).toMatchObject([
      { type: 'message' },
      { type: 'function_call', name: 'weather', arguments: '{"place":"Oslo"}', status: 'completed' },
    ])
    const call = first.output[1] as OpenAI.Responses.ResponseFunctionToolCall // shown above
    const second = await client.responses.create({
      ...ask(''),
      tools,
      input: [
        { role: 'user', content: 'Weather?' },
        ...(first.output as OpenAI.Responses.ResponseInputItem[]), // an output may be an input
        { type: 'function_call_output', call_id: call.call_id, output: '-5' },
      ],
    })
    expect(promptOf(last())).toContain('Assistant: I look.\n```json\n{"name":"weather"')
    expect(promptOf(last())).toContain('User: Function output:\n-5')
    expect(second.output_text).toBe('It is cold.')
    const streamed = await client.responses.stream({ ...ask('Weather?'), tools }).finalResponse()
    expect(streamed.output[1]).toMatchObject({ arguments: '{"place":"Oslo"}', name: 'weather' })
  })

  test('if sessions have no room, a response with `store` unset is answered anyway', async () => {
    const full = serve((request) => {
      const error = { code: 'too_large', message: 'no room' } as const
      if (request.session !== undefined) return [{ type: 'error', id: request.id, error }]
      return answer(request, ' Yes.')
    })
    full.engine.answerCall = () => ({})
    const own = await openAiOf(full.app, 'none')
    const { data, response } = await own.responses.create({ model: 'goose', input: 'Hi' }).withResponse()
    expect(data).toMatchObject({ output_text: 'Yes.', store: false })
    expect(response.headers.get('warnings')).toBe('the response was not stored: no room')
    expect(promptOf(full.engine.requests.at(-1)!)).toBe('User: Hi\n\nAssistant:')
    const named = { model: 'goose', input: 'Hi', store: true }
    await expect(own.responses.create(named)).rejects.toThrow(/no room/)
    const next = { model: 'goose', input: 'Hi', previous_response_id: `resp_${'0'.repeat(32)}` }
    await expect(own.responses.create(next)).rejects.toThrow(/no room/)
    await full.app.close()
  })

  test('an error within a stream is an event, and the response is failed', async () => {
    const events: OpenAI.Responses.ResponseStreamEvent[] = []
    for await (const event of await client.responses.create({ ...ask('MID'), stream: true })) {
      events.push(event)
    }
    expect(events.at(-2)).toMatchObject({ type: 'error', message: expect.stringContaining('the model failed') })
    expect(events.at(-1)).toMatchObject({
      type: 'response.failed',
      response: { status: 'failed', error: { code: 'server_error' } },
    })
  })

  test.each([
    ['truncation', { truncation: 'auto' }],
    ['background', { background: true }],
    ['conversation', { conversation: 'conv_1' }],
    ['input[0].content[0].type', { input: [{ role: 'user', content: [{ type: 'input_image' }] }] }],
    ['input[0].type', { input: [{ type: 'web_search_call', id: 'x' }] }],
    ['input[0].id', { input: [{ type: 'item_reference', id: 'msg_x' }] }],
    ['tools[0].type', { tools: [{ type: 'web_search' }] }],
    ['tools', { tools: [...tools, ...tools] }],
    ['tools[0]', { tools: [{ ...tools[0], strict: true, parameters: { not: {} } }] }],
    ['tool_choice', { tool_choice: 'required' }],
    ['include[0]', { include: ['file_search_call.results'] }],
    ['reasoning.effort', { reasoning: { effort: 'all' } }],
    ['previous_response_id', { previous_response_id: 'x' }],
    ['text.format', { text: { format: { type: 'json_schema' } } }],
  ])('%s is refused by name', async (param, fields) => {
    const payload = { ...ask('Hi'), ...fields }
    const reply = await app.inject({ method: 'POST', url: '/v1/responses', payload })
    expect([400, 404]).toContain(reply.statusCode)
    expect(reply.json().error.param).toBe(param)
  })
})

describe.skipIf(!hasDemo)('conversations', () => {
  let app: FastifyInstance
  let client: OpenAI
  let other: OpenAI
  beforeAll(async () => {
    ;({ app } = await serveDemo({ keys: ['sk-one', 'sk-two'] }))
    client = await openAiOf(app, 'sk-one')
    other = await openAiOf(app, 'sk-two')
  })
  afterAll(() => app.close())
  const greedy = { model: 'demo', temperature: 0, max_output_tokens: 12 }
  const sessions = async () => ((await client.get('/sessions')) as { data: { id: string }[] }).data.map(({ id }) => id)

  test('a response that continues another equals one that sends everything, and reads only what is new', async () => {
    const first = await client.responses.create({ ...greedy, input: 'Hello.' })
    const second = await client.responses.create({ ...greedy, input: 'And you?', previous_response_id: first.id })
    const whole = await client.responses.create({
      ...greedy,
      store: false,
      input: [
        { role: 'user', content: 'Hello.' },
        { role: 'assistant', content: first.output_text },
        { role: 'user', content: 'And you?' },
      ],
    })
    expect(second.output_text).toBe(whole.output_text)
    expect(second.usage!.input_tokens_details.cached_tokens).toBeGreaterThan(0)
    expect(second.usage!.input_tokens).toBeGreaterThan(first.usage!.input_tokens)
    // The first response is unchanged: another may continue from it.
    const branch = { ...greedy, input: 'And you?', previous_response_id: first.id }
    expect((await client.responses.create(branch)).output_text).toBe(second.output_text)
    expect(await sessions()).toEqual(expect.arrayContaining([first.id, second.id]))
    expect(await sessions()).not.toContain(whole.id)
  })

  test('stored, read back, deleted', async () => {
    const weather = { type: 'function', name: 'weather', parameters: {}, strict: false } as const
    const asked = {
      ...greedy,
      input: 'Hello.',
      instructions: 'Be kind.',
      metadata: { from: 'a test' },
      tools: [weather],
      tool_choice: 'none',
    } as const
    const made = await client.responses.create({ ...asked, tools: [...asked.tools] })
    const kept = await client.responses.retrieve(made.id)
    const { usage: _usage, ...said } = made
    expect(kept).toEqual({ ...said, status: 'completed', output: kept.output })
    expect(kept).toMatchObject({ metadata: { from: 'a test' }, tools: [{ name: 'weather' }] })
    expect(kept.output_text).toBe(made.output_text)
    expect(kept.output.map(({ id }) => id)).toEqual(made.output.map(({ id }) => id))
    await expect(client.responses.retrieve(made.id, { stream: true })).rejects.toThrow(/^400 stream: /)
    const items = await client.responses.inputItems.list(made.id)
    expect(items.data).toMatchObject([
      { role: 'system', content: [{ text: 'Be kind.' }] },
      { role: 'user', content: [{ text: 'Hello.' }] },
    ])
    await client.responses.delete(made.id)
    await expect(client.responses.retrieve(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError)
    await expect(client.responses.delete(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError)
    const next = { ...greedy, input: 'Hm?', previous_response_id: made.id }
    await expect(client.responses.create(next)).rejects.toThrow(/previous_response_id/)
    await expect(client.responses.create({ ...next, stream: true })).rejects.toThrow(/no such response/)
  })

  test('a referenced item is found', async () => {
    const made = await client.responses.create({ ...greedy, input: 'Hello.' })
    const referred = await client.responses.create({
      ...greedy,
      input: [
        { role: 'user', content: 'Hello.' },
        { type: 'item_reference', id: made.output.at(-1)!.id! },
        { role: 'user', content: 'And you?' },
      ],
    })
    const next = { ...greedy, input: 'And you?', previous_response_id: made.id }
    expect(referred.output_text).toBe((await client.responses.create(next)).output_text)
  })

  test('responses of one key are invisible to others', async () => {
    const made = await client.responses.create({ ...greedy, input: 'Hello.' })
    await expect(other.responses.retrieve(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError)
    await expect(other.responses.delete(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError)
    const next = { ...greedy, input: 'Hm?', previous_response_id: made.id }
    await expect(other.responses.create(next)).rejects.toBeInstanceOf(OpenAI.NotFoundError)
    expect((await client.responses.retrieve(made.id)).id).toBe(made.id)
  })

  test('a cancelled response, or one with store false, leaves no session', async () => {
    const before = (await sessions()).length
    const first = await client.responses.create({ ...greedy, input: 'Hello.' })
    const stream = await client.responses.create({
      ...greedy,
      max_output_tokens: 5000,
      input: 'Tell me all.',
      previous_response_id: first.id,
      stream: true,
    })
    for await (const event of stream) if (event.type === 'response.output_text.delta') break
    const next = { ...greedy, input: 'Hm?', previous_response_id: first.id, store: false }
    expect((await client.responses.create(next)).status).toMatch(/completed|incomplete/)
    await expect.poll(async () => (await sessions()).length, { timeout: 5000 }).toBe(before + 1)
  })

  test('tokens of a prompt are counted', async () => {
    const { input_tokens } = (await client.post('/responses/input_tokens', {
      body: { model: 'demo', input: 'Hello.' },
    })) as { input_tokens: number }
    const made = await client.responses.create({ ...greedy, store: false, input: 'Hello.' })
    expect(made.usage!.input_tokens).toBe(input_tokens)
  })
})
