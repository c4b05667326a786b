/** A whole tool loop with the demo model and no help: calls, results, an answer; with three clients. */
import Anthropic from '@anthropic-ai/sdk'
import type { FastifyInstance } from 'fastify'
import { Ollama } from 'ollama'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { urlOf } from './kit.ts'

const QUESTION = 'What is the weather in the capital of Japan?'
const ANSWER = 'The weather in Tokyo: rainy, 16 degrees.'
/** The calls that the model must make, in order, and their results. */
const LOOP = [
  { name: 'capital_of', given: { country: 'Japan' }, result: 'Tokyo' },
  { name: 'get_weather', given: { city: 'Tokyo' }, result: '{"weather":"rainy","temperature":16}' },
]

const objectOf = (...names: string[]) => ({
  type: 'object' as const,
  properties: Object.fromEntries(names.map((name) => [name, { type: 'string' }])),
  required: names,
})
const TOOLS = [
  { name: 'get_weather', description: 'The weather of a city', parameters: objectOf('city') },
  { name: 'send_email', description: 'Sends an email', parameters: objectOf('to', 'text') },
  { name: 'capital_of', description: 'The capital of a country', parameters: objectOf('country') },
]
const functions = TOOLS.map((tool) => ({ type: 'function' as const, function: tool }))

describe.skipIf(!hasDemo)('with the demo model', () => {
  let app: FastifyInstance
  let url: string
  beforeAll(async () => {
    ;({ app } = await serveDemo({}))
    url = await urlOf(app)
  })
  afterAll(() => app.close())
  const openai = () => new OpenAI({ apiKey: 'none', baseURL: `${url}/v1`, maxRetries: 0 })
  const asked = { model: 'demo', temperature: 0 }

  test.each(['none', 'low'] as const)('OpenAI, streamed, reasoning_effort %s', async (effort) => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: QUESTION }]
    const ask = () =>
      openai()
        .chat.completions.stream({ ...asked, messages, tools: functions, reasoning_effort: effort })
        .finalMessage()
    for (const { name, given, result } of LOOP) {
      const message = await ask()
      const [call] = message.tool_calls!
      if (call?.type !== 'function') throw new Error('no function was called')
      expect([call.function.name, JSON.parse(call.function.arguments)]).toEqual([name, given])
      messages.push(message, { role: 'tool', tool_call_id: call.id, content: result })
    }
    expect((await ask()).content).toBe(ANSWER)
  })

  test('OpenAI: two calls at once, none when none is needed, a required one', async () => {
    const ask = async (content: string, more: object = {}) => {
      const messages = [{ role: 'user' as const, content }]
      const given = { ...asked, messages, tools: functions, ...more }
      const { choices } = await openai().chat.completions.create(given)
      const { tool_calls: calls = [], content: said } = choices[0]!.message
      return [said, ...calls.map((call) => 'function' in call && JSON.parse(call.function.arguments))]
    }
    const both = 'What is the weather in Paris and Rome?'
    expect(await ask(both)).toEqual([null, { city: 'Paris' }, { city: 'Rome' }])
    const one = { parallel_tool_calls: false }
    expect(await ask(both, one)).toEqual([null, { city: 'Paris' }])
    expect(await ask('What colour is the sky?')).toEqual(['The sky is blue.'])
    const must = { tool_choice: 'required' }
    expect(await ask('中国的首都是哪里？', must)).toEqual([null, { country: '中国' }])
  })

  test('Anthropic', async () => {
    const client = new Anthropic({ apiKey: 'none', baseURL: url, maxRetries: 0 })
    const tools = TOOLS.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters }))
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: QUESTION }]
    const ask = () => client.messages.create({ ...asked, max_tokens: 200, messages, tools })
    for (const { name, given, result } of LOOP) {
      const { content, stop_reason } = await ask()
      const [call] = content
      if (call?.type !== 'tool_use') throw new Error('no tool was used')
      expect([call.name, call.input, stop_reason]).toEqual([name, given, 'tool_use'])
      const back = { type: 'tool_result' as const, tool_use_id: call.id, content: result }
      messages.push({ role: 'assistant', content }, { role: 'user', content: [back] })
    }
    expect(await ask()).toMatchObject({ content: [{ text: ANSWER }], stop_reason: 'end_turn' })
  })

  test('Ollama', async () => {
    const client = new Ollama({ host: url })
    const messages: Parameters<typeof client.chat>[0]['messages'] = []
    messages.push({ role: 'user', content: QUESTION })
    const ask = () => client.chat({ model: 'demo', options: { temperature: 0 }, messages, tools: functions })
    for (const { name, given, result } of LOOP) {
      const { message } = await ask()
      expect(message.tool_calls).toEqual([{ function: { name, arguments: given } }])
      messages.push(message, { role: 'tool', content: result, tool_name: name })
    }
    expect((await ask()).message.content).toBe(ANSWER)
  })
})
