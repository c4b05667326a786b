/**
 * A server that tells tools in the form of vllm-rwkv: a whole loop in every dialect, with a scripted engine that
 * answers only prompts in that form; and its grammar and stored turns, with the demo model.
 */
import Anthropic from '@anthropic-ai/sdk'
import type { FastifyInstance } from 'fastify'
import { Ollama } from 'ollama'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { answer, FAKE_INFO, promptOf } from '../helpers/fake-engine.ts'
import { hasDemo, serveDemo } from './demo.ts'
import { serve, urlOf } from './kit.ts'

const QUESTION = 'What is the weather in Oslo?'
const GIVEN = { city: 'Oslo' }
const SAID = 'It rains.'
const SCHEMA = { type: 'object' as const, properties: { city: { type: 'string' } }, required: ['city'] }
const TOOL = { name: 'get_weather', description: 'The weather of a city', parameters: SCHEMA }
const functions = [{ type: 'function' as const, function: TOOL }]

const pretty = (value: unknown) => `\`\`\`json\n${JSON.stringify(value, null, 2)}\n\`\`\``
/** Exactly as in vllm-rwkv's template. */
const LIST = `### System
### \`get_weather\`
**Description:** The weather of a city
**Parameters:**
${pretty(SCHEMA)}
To call one of these tools, write exactly this format:
**Tool Call:**
\`\`\`json
{"name": "tool_name", "arguments": {"key": "value"}}
\`\`\`
Do not invent tool call IDs or write tool outputs yourself.
`
const ASKED = `${LIST}### User\n${QUESTION}\n### Assistant\n`
const CALLED = `**Tool Call:**\n${pretty({ name: 'get_weather', arguments: GIVEN })}`
const BACK = `### Tool Output\n${pretty({ weather: 'rain' })}\n### Assistant\n`
const RESULT = '{"weather":"rain"}'

/** The prompt without the start of the answer, which is a thought or an empty one. */
const withoutTail = (prompt: string) => prompt.replace(/<think(?:><\/think(?:>\n)?)?$/, '')

describe('a loop', () => {
  const { app, engine } = serve(
    (request) => {
      const prompt = promptOf(request)
      const lead = prompt.endsWith('<think') ? '>\nHm.\n</think>\n' : '>\n'
      const isBegun = prompt.endsWith('>\n')
      const said = prompt.includes('### Tool Output') ? SAID : CALLED
      return answer(request, isBegun ? said : `${lead}${said}`)
    },
    {},
    { ...FAKE_INFO, toolTemplate: 'vllm-rwkv' },
  )
  let url: string
  beforeAll(async () => {
    url = await urlOf(app)
  })
  afterAll(() => app.close())
  const prompts = () => engine.requests.splice(0).map((request) => withoutTail(promptOf(request)))
  const openai = () => new OpenAI({ apiKey: 'none', baseURL: `${url}/v1`, maxRetries: 0 })

  test.each(['none', 'high'] as const)('chat completions, effort %s', async (effort) => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: QUESTION }]
    const ask = { model: 'goose', messages, tools: functions, reasoning_effort: effort }
    const message = await openai().chat.completions.stream(ask).finalMessage()
    const [call] = message.tool_calls!
    if (call?.type !== 'function') throw new Error('no function was called')
    expect(JSON.parse(call.function.arguments)).toEqual(GIVEN)
    messages.push(message, { role: 'tool', tool_call_id: call.id, content: RESULT })
    const { choices } = await openai().chat.completions.create(ask)
    expect(choices[0]).toMatchObject({ finish_reason: 'stop', message: { content: SAID } })
    const hint = effort === 'high' ? ' (think a lot)' : ''
    const asked = ASKED.replace(QUESTION, `${QUESTION}${hint}`)
    expect(engine.requests[0]!.stop.strings).toEqual(
      expect.arrayContaining(['\n### User', '\n### System', '\n### Tool Output', '\n\nUser:']),
    )
    expect(prompts()).toEqual([asked, `${ASKED}${CALLED}\n${BACK}`])
  })

  test('consecutive system texts are merged if there are tools', async () => {
    const system = (content: string) => ({ role: 'system' as const, content })
    const user = { role: 'user' as const, content: QUESTION }
    const messages = [system('Be kind.'), system(''), system('Be brief.'), user]
    await openai().chat.completions.create({ model: 'goose', messages, tools: functions })
    await openai().chat.completions.create({ model: 'goose', messages })
    expect(prompts()).toEqual([
      ASKED.replace('### System\n', '### System\nBe kind.\nBe brief.\n'),
      `System: Be kind.\n\nSystem:\n\nSystem: Be brief.\n\nUser: ${QUESTION}\n\nAssistant:`,
    ])
  })

  test('responses', async () => {
    const tools = [{ type: 'function' as const, ...TOOL, strict: null }]
    const input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: QUESTION }]
    const ask = { model: 'goose', input, tools, store: false }
    const first = await openai().responses.create(ask)
    const [call] = first.output
    if (call?.type !== 'function_call') throw new Error('no function was called')
    expect(JSON.parse(call.arguments)).toEqual(GIVEN)
    input.push(call, { type: 'function_call_output', call_id: call.call_id, output: RESULT })
    expect((await openai().responses.create(ask)).output_text).toBe(SAID)
    expect(prompts()).toEqual([ASKED, `${ASKED}${CALLED}\n${BACK}`])
  })

  test('Anthropic, whose token count equals that of the prompt', async () => {
    const client = new Anthropic({ apiKey: 'none', baseURL: url, maxRetries: 0 })
    const { parameters: input_schema, ...about } = TOOL
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: QUESTION }]
    const asked = { model: 'goose', messages, tools: [{ ...about, input_schema }] }
    const ask = { ...asked, max_tokens: 100 }
    const { content } = await client.messages.stream(ask).finalMessage()
    const call = content.find((block) => block.type === 'tool_use')!
    expect(call.input).toEqual(GIVEN)
    const back = { type: 'tool_result' as const, tool_use_id: call.id, content: RESULT }
    messages.push({ role: 'assistant', content }, { role: 'user', content: [back] })
    expect(await client.messages.create(ask)).toMatchObject({ content: [{ text: SAID }] })
    const { input_tokens } = await client.messages.countTokens(asked)
    expect(input_tokens).toBe(engine.requests[1]!.prompt.length)
    expect(prompts()).toEqual([ASKED, `${ASKED}${CALLED}\n${BACK}`])
  })

  test('Ollama', async () => {
    const client = new Ollama({ host: url })
    const messages: Parameters<typeof client.chat>[0]['messages'] = []
    messages.push({ role: 'user', content: QUESTION })
    const { message } = await client.chat({ model: 'goose', messages, tools: functions })
    expect(message.tool_calls).toEqual([{ function: { name: 'get_weather', arguments: GIVEN } }])
    messages.push(message, { role: 'tool', content: RESULT, tool_name: 'get_weather' })
    const last = await client.chat({ model: 'goose', messages, tools: functions })
    expect(last.message.content).toBe(SAID)
    expect(prompts()).toEqual([ASKED, `${ASKED}${CALLED}\n${BACK}`])
  })
})

describe.skipIf(!hasDemo)('with the demo model, which was not trained on it', () => {
  let app: FastifyInstance
  let client: OpenAI
  beforeAll(async () => {
    ;({ app } = await serveDemo({}, { toolTemplate: 'vllm-rwkv' }))
    client = new OpenAI({ apiKey: 'none', baseURL: `${await urlOf(app)}/v1`, maxRetries: 0 })
  })
  afterAll(() => app.close())

  test('a required call has the right form; the turn is read back and continued', async () => {
    const tools = [
      { type: 'function' as const, ...TOOL, strict: null },
      { type: 'function' as const, ...TOOL, name: 'other', strict: null },
    ]
    const named = { type: 'function' as const, name: 'get_weather' }
    const ask = { model: 'demo', temperature: 1, tools, max_output_tokens: 300 }
    const first = await client.responses.create({ ...ask, input: QUESTION, tool_choice: named })
    const [call] = first.output
    if (call?.type !== 'function_call') throw new Error('no function was called')
    expect(call.name).toBe('get_weather')
    expect(JSON.parse(call.arguments)).toEqual({ city: expect.any(String) })
    const again = await client.responses.retrieve(first.id)
    expect(again.output).toMatchObject([{ type: 'function_call', arguments: call.arguments }])
    const output = { type: 'function_call_output' as const, call_id: call.call_id, output: RESULT }
    const next = await client.responses.create({
      ...ask,
      previous_response_id: first.id,
      input: [output],
      max_output_tokens: 5,
    })
    expect(next.usage!.input_tokens_details.cached_tokens).toBeGreaterThan(100)
    const { data } = await client.responses.inputItems.list(next.id)
    expect(data).toMatchObject([{ type: 'function_call_output', output: RESULT }])
  })
})
