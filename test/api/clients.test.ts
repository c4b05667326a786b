/**
 * Which client works how far with this server: the table of docs/clients.md is generated here. Libraries run as
 * published on npm; for programs, requests are sent in the format of their public sources.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import Anthropic from '@anthropic-ai/sdk'
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai'
import {
  cosineSimilarity,
  embedMany,
  generateObject,
  generateText,
  jsonSchema,
  stepCountIs,
  streamText,
  tool,
} from 'ai'
import { Ollama } from 'ollama'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { answer, FAKE_INFO, promptOf } from '../helpers/fake-engine.ts'
import { serve, urlOf } from './kit.ts'

const KEY = 'sk-right'
const CALL = '```json\n{"name":"weather","arguments":{"place":"Oslo"}}\n```'
const { app, engine } = serve(
  (request) => {
    const text = promptOf(request)
    if (text.includes('Function output')) return answer(request, ' It is cold.')
    const said = text.includes('Tools:') ? CALL : 'Yes.'
    if (text.endsWith('<think')) return answer(request, `>\nHm.\n</think>\n${said}`)
    if (said === CALL) return answer(request, ` ${CALL}`)
    return answer(request, request.constraint === undefined ? ' Yes.' : ' {"place":"Oslo"}')
  },
  { keys: [KEY] },
  { ...FAKE_INFO, embeddings: 'mean' },
)
let host: string
beforeAll(async () => {
  host = await urlOf(app)
})
afterAll(() => app.close())

const SCHEMA = {
  type: 'object',
  properties: { place: { type: 'string' } },
  required: ['place'],
  additionalProperties: false,
} as const
const ASK = [{ role: 'user' as const, content: 'Weather?' }]

const openai = () => new OpenAI({ apiKey: KEY, baseURL: `${host}/v1`, maxRetries: 0 })
const anthropic = () => new Anthropic({ apiKey: KEY, baseURL: host, maxRetries: 0 })
const ollama = () => new Ollama({ host, headers: { authorization: `Bearer ${KEY}` } })
const ofOpenAi = () => createOpenAI({ apiKey: KEY, baseURL: `${host}/v1` })('goose')
const provider = () => createOpenAICompatible({ name: 'skein', apiKey: KEY, baseURL: `${host}/v1` })
const compatible = () => provider()('goose')
const vectors = () => provider().embeddingModel('goose')
const langchain = () =>
  new ChatOpenAI({ model: 'goose', apiKey: KEY, maxRetries: 0, configuration: { baseURL: `${host}/v1` } })
const responsesTool = {
  type: 'function' as const,
  name: 'weather',
  description: 'The weather of a place',
  parameters: SCHEMA,
  strict: true,
}
const messagesTool = { name: 'weather', description: 'Weather', input_schema: SCHEMA }
const chatTool = {
  type: 'function',
  function: { name: 'weather', description: 'The weather of a place', parameters: SCHEMA },
}
const weather = tool({
  description: 'The weather of a place',
  inputSchema: jsonSchema<{ place: string }>(SCHEMA),
  execute: async ({ place }) => `${place}: -5`,
})

async function send(path: string, body?: object): Promise<string> {
  const headers = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' }
  const init = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }
  const reply = await fetch(`${host}${path}`, { ...init, headers })
  const text = await reply.text()
  expect(reply.status, text).toBe(200)
  return text
}

/** The objects in Ollama's streams and replies. */
async function lines(path: string, body: object) {
  const all = (await send(path, body)).trim().split('\n')
  return all.map((line) => JSON.parse(line) as Record<string, unknown>)
}

type Check = () => Promise<unknown>
const FEATURES = ['models', 'answer', 'stream', 'thought', 'tools', 'schema', 'goes on', 'embeddings'] as const
type Row = Partial<Record<(typeof FEATURES)[number], Check>>

const CLIENTS: Readonly<Record<string, Row>> = {
  '`openai`, chats': {
    models: async () => expect((await openai().models.list()).data[0]!.id).toBe('goose'),
    answer: async () => {
      const reply = await openai().chat.completions.create({ model: 'goose', messages: ASK })
      expect(reply.choices[0]!.message.content).toBe('Yes.')
    },
    stream: async () => {
      const stream = openai().chat.completions.stream({ model: 'goose', messages: ASK })
      expect(await stream.finalContent()).toBe('Yes.')
    },
    tools: async () => {
      const reply = await openai().chat.completions.create({
        model: 'goose',
        messages: ASK,
        tools: [{ type: 'function', function: chatTool.function }],
      })
      expect(reply.choices[0]!.message.tool_calls).toMatchObject([
        { function: { name: 'weather', arguments: '{"place":"Oslo"}' } },
      ])
    },
    schema: async () => {
      const reply = await openai().chat.completions.parse({
        model: 'goose',
        messages: ASK,
        response_format: { type: 'json_schema', json_schema: { name: 'place', schema: SCHEMA, strict: true } },
      })
      expect(reply.choices[0]!.message.content).toBe('{"place":"Oslo"}')
    },
    embeddings: async () => {
      // The client asks for base64 and decodes it.
      const reply = await openai().embeddings.create({ model: 'goose', input: ['ab', 'ba'] })
      expect(reply.data[1]!.embedding).toEqual(reply.data[0]!.embedding)
      expect(Math.hypot(...reply.data[0]!.embedding)).toBeCloseTo(1, 6)
    },
  },
  '`openai`, responses': {
    answer: async () => {
      const reply = await openai().responses.create({ model: 'goose', input: 'Hi', store: false })
      expect(reply.output_text).toBe('Yes.')
    },
    stream: async () => {
      const stream = openai().responses.stream({ model: 'goose', input: 'Hi', store: false })
      expect((await stream.finalResponse()).output_text).toBe('Yes.')
    },
    thought: async () => {
      const reply = await openai().responses.create({ model: 'goose', input: 'Hi', reasoning: { effort: 'medium' } })
      expect(reply.output[0]!.type).toBe('reasoning')
    },
    tools: async () => {
      const reply = await openai().responses.create({ model: 'goose', input: 'Weather?', tools: [responsesTool] })
      expect(reply.output).toMatchObject([{ type: 'function_call', arguments: '{"place":"Oslo"}' }])
    },
    schema: async () => {
      const reply = await openai().responses.parse({
        model: 'goose',
        input: 'Where?',
        text: { format: { type: 'json_schema', name: 'place', schema: SCHEMA, strict: true } },
      })
      expect(reply.output_parsed).toEqual({ place: 'Oslo' })
    },
    'goes on': async () => {
      engine.answerCall = () => ({})
      const first = await openai().responses.create({ model: 'goose', input: 'Hi' })
      await openai().responses.create({ model: 'goose', input: 'More', previous_response_id: first.id })
      expect(engine.calls.at(-1)).toMatchObject({ method: 'sessions.fork', params: { id: first.id } })
    },
  },
  '`@anthropic-ai/sdk`': {
    models: async () => expect((await anthropic().models.list()).data[0]!.id).toBe('goose'),
    answer: async () => {
      const reply = await anthropic().messages.create({ model: 'goose', max_tokens: 50, messages: ASK })
      expect(reply.content).toMatchObject([{ type: 'text', text: 'Yes.' }])
    },
    stream: async () => {
      const stream = anthropic().messages.stream({ model: 'goose', max_tokens: 50, messages: ASK })
      expect(await stream.finalText()).toBe('Yes.')
    },
    thought: async () => {
      const reply = await anthropic().messages.create({
        model: 'goose',
        max_tokens: 50,
        messages: ASK,
        thinking: { type: 'adaptive' },
      })
      expect(reply.content[0]!.type).toBe('thinking')
    },
    tools: async () => {
      const reply = await anthropic().messages.create({
        model: 'goose',
        max_tokens: 50,
        messages: ASK,
        tools: [messagesTool as unknown as Anthropic.Tool], // the client's lists are not read-only
      })
      expect(reply.content).toMatchObject([{ type: 'tool_use', input: { place: 'Oslo' } }])
    },
    schema: async () => {
      const reply = await anthropic().messages.create({
        model: 'goose',
        max_tokens: 50,
        messages: ASK,
        output_config: { format: { type: 'json_schema', schema: SCHEMA } },
      })
      expect(reply.content).toMatchObject([{ text: '{"place":"Oslo"}' }])
    },
  },
  '`ollama`': {
    models: async () => expect((await ollama().list()).models[0]!.name).toBe('goose:latest'),
    answer: async () => {
      const { message } = await ollama().chat({ model: 'goose', messages: ASK })
      expect(message.content).toBe('Yes.')
    },
    stream: async () => {
      let text = ''
      const stream = await ollama().chat({ model: 'goose', messages: ASK, stream: true })
      for await (const { message } of stream) text += message.content
      expect(text).toBe('Yes.')
    },
    thought: async () => {
      const { message } = await ollama().chat({ model: 'goose', messages: ASK, think: true })
      expect(message.thinking).toBe('Hm.\n')
    },
    tools: async () => {
      const tools = [chatTool as unknown as import('ollama').Tool] // the client's lists are not read-only
      const { message } = await ollama().chat({ model: 'goose', messages: ASK, tools })
      expect(message.tool_calls).toEqual([{ function: { name: 'weather', arguments: { place: 'Oslo' } } }])
    },
    schema: async () => {
      const { message } = await ollama().chat({ model: 'goose', messages: ASK, format: SCHEMA })
      expect(JSON.parse(message.content)).toEqual({ place: 'Oslo' })
    },
    embeddings: async () => {
      const { embeddings } = await ollama().embed({ model: 'goose', input: ['ab', 'c'] })
      expect(embeddings.map((vector) => Math.hypot(...vector).toFixed(5))).toEqual(['1.00000', '1.00000'])
      const { embedding } = await ollama().embeddings({ model: 'goose', prompt: 'ab' })
      expect(embedding).toEqual(embeddings[0])
    },
  },
  '`ai` with `@ai-sdk/openai`': {
    answer: async () => {
      const { text } = await generateText({ model: ofOpenAi(), prompt: 'Hi' })
      expect(text).toBe('Yes.')
    },
    stream: async () => {
      expect(await streamText({ model: ofOpenAi(), prompt: 'Hi' }).text).toBe('Yes.')
    },
    tools: async () => {
      const { text, steps } = await generateText({
        model: ofOpenAi(),
        prompt: 'Weather?',
        tools: { weather },
        stopWhen: stepCountIs(3),
        // The scripted engine keeps no states, so items could not be read back.
        providerOptions: { openai: { store: false } },
      })
      expect(steps[0]!.toolCalls[0]).toMatchObject({ input: { place: 'Oslo' } })
      expect(text).toBe('It is cold.')
    },
    schema: async () => {
      const schema = jsonSchema<{ place: string }>(SCHEMA)
      const { object } = await generateObject({ model: ofOpenAi(), schema, prompt: 'Where?' })
      expect(object).toEqual({ place: 'Oslo' })
    },
    embeddings: async () => {
      const model = createOpenAI({ apiKey: KEY, baseURL: `${host}/v1` }).embedding('goose')
      const { embeddings, usage } = await embedMany({ model, values: ['ab', 'ba', 'c'] })
      expect(cosineSimilarity(embeddings[0]!, embeddings[1]!)).toBeCloseTo(1, 6)
      expect(usage.tokens).toBe(5)
    },
  },
  '`ai` with `@ai-sdk/openai-compatible`': {
    answer: async () => {
      const { text } = await generateText({ model: compatible(), prompt: 'Hi' })
      expect(text).toBe('Yes.')
    },
    stream: async () => {
      expect(await streamText({ model: compatible(), prompt: 'Hi' }).text).toBe('Yes.')
    },
    embeddings: async () => {
      const { embeddings } = await embedMany({ model: vectors(), values: ['ab', 'ba'] })
      expect(cosineSimilarity(embeddings[0]!, embeddings[1]!)).toBeCloseTo(1, 6)
    },
    tools: async () => {
      const { text, steps } = await generateText({
        model: compatible(),
        prompt: 'Weather?',
        tools: { weather },
        stopWhen: stepCountIs(3),
      })
      expect(steps[0]!.toolCalls[0]).toMatchObject({ input: { place: 'Oslo' } })
      expect(text).toBe('It is cold.')
    },
  },
  '`@langchain/openai`': {
    answer: async () => expect((await langchain().invoke('Hi')).content).toBe('Yes.'),
    stream: async () => {
      let text = ''
      for await (const { content } of await langchain().stream('Hi')) text += content
      expect(text).toBe('Yes.')
    },
    tools: async () => {
      const { tool_calls } = await langchain().bindTools([chatTool]).invoke('Weather?')
      expect(tool_calls).toMatchObject([{ name: 'weather', args: { place: 'Oslo' } }])
    },
    schema: async () => {
      for (const method of ['jsonSchema', 'functionCalling', 'jsonMode'] as const) {
        const asked = langchain().withStructuredOutput(SCHEMA, { name: 'weather', method })
        expect(await asked.invoke('Where? In JSON.'), method).toEqual({ place: 'Oslo' })
      }
    },
    embeddings: async () => {
      const configuration = { baseURL: `${host}/v1` }
      const model = new OpenAIEmbeddings({ model: 'goose', apiKey: KEY, configuration })
      const [one, two] = await model.embedDocuments(['ab', 'ba'])
      expect(one).toEqual(two)
      expect(await model.embedQuery('ab')).toEqual(one)
    },
  },
  'Open WebUI, Ollama connection': {
    models: async () => {
      expect(JSON.parse(await send('/api/version'))).toHaveProperty('version')
      expect(await send('/api/tags')).toContain('"model":"goose:latest"')
    },
    answer: async () => {
      const body = { model: 'goose:latest', messages: ASK, stream: false, options: {} }
      const [reply] = await lines('/api/chat', body)
      expect(reply).toMatchObject({ done: true, message: { content: 'Yes.' } })
    },
    stream: async () => {
      const options = { temperature: 0.7, num_ctx: 8192, repeat_last_n: 64, mirostat: 0 }
      const body = { model: 'goose:latest', messages: ASK, stream: true, options, keep_alive: '5m' }
      expect((await lines('/api/chat', body)).at(-1)).toMatchObject({ done: true })
    },
    thought: async () => {
      const body = { model: 'goose:latest', messages: ASK, stream: true, think: true, options: {} }
      expect(thoughtOf(await lines('/api/chat', body))).toBe('Hm.\n')
    },
    tools: async () => {
      const body = { model: 'goose:latest', messages: ASK, stream: true, tools: [chatTool] }
      expect(JSON.stringify(await lines('/api/chat', body))).toContain('"tool_calls"')
      // The result is sent back as a message of its own.
      const messages = [...ASK, calledWeather, { role: 'tool', content: '-3 degrees' }]
      const after = await lines('/api/chat', { ...body, messages, stream: false })
      expect(after).toMatchObject([{ message: { content: 'It is cold.' } }])
    },
    schema: async () => {
      const options = { temperature: 0 }
      const body = { model: 'goose:latest', messages: ASK, stream: false, format: SCHEMA, options }
      const [reply] = await lines('/api/chat', body)
      expect(reply).toMatchObject({ message: { content: '{"place":"Oslo"}' } })
    },
    embeddings: () => expectVectors('goose:latest'),
  },
  'Continue, Ollama provider': {
    models: async () => {
      const shown = JSON.parse(await send('/api/show', { name: 'goose' }))
      // It fills in the middle if the template says that it can.
      expect(shown.template).toContain('.Suffix')
    },
    stream: async () => {
      const options = { num_predict: 200, num_ctx: 8192, stop: ['\n\n'], temperature: 0.01 }
      const body = { model: 'goose', keep_alive: 1800, stream: true, options }
      const middle = await lines('/api/generate', { ...body, prompt: 'a', suffix: 'c', raw: true })
      expect(middle.at(-1)).toMatchObject({ done: true })
      expect((await lines('/api/chat', { ...body, messages: ASK })).at(-1)).toMatchObject({ done: true })
    },
    tools: async () => {
      const body = { model: 'goose', messages: ASK, stream: false, tools: [chatTool], options: {} }
      const [reply] = await lines('/api/chat', body)
      expect(reply).toMatchObject({ message: { tool_calls: [{ function: { name: 'weather' } }] } })
    },
    thought: async () => {
      const body = { model: 'goose', messages: ASK, stream: true, think: true, options: {} }
      expect(thoughtOf(await lines('/api/chat', body))).toBe('Hm.\n')
    },
    embeddings: () => expectVectors('goose'),
  },
  'Zed, Ollama provider': {
    models: async () => {
      expect(JSON.parse(await send('/api/show', { model: 'goose:latest' })).capabilities).toContain('tools')
    },
    stream: async () => {
      const options = { num_ctx: 16_384, num_predict: null, stop: [], temperature: 1, top_p: null }
      const body = { model: 'goose:latest', messages: ASK, stream: true, keep_alive: -1, options }
      expect((await lines('/api/chat', { ...body, tools: [], think: null })).at(-1)).toMatchObject({ done: true })
    },
    tools: async () => {
      const body = { model: 'goose:latest', messages: ASK, stream: true, tools: [chatTool] }
      const calls = (await lines('/api/chat', body)).flatMap(
        ({ message }) => (message as { tool_calls?: object[] }).tool_calls ?? [],
      )
      // This key and no other: the client reads a call as the one kind there is.
      expect(calls.map((call) => Object.keys(call))).toEqual([['function']])
      const result = { role: 'tool', tool_name: 'weather', content: '-3 degrees' }
      const messages = [...ASK, { ...calledWeather, thinking: null, images: null }, result]
      const after = await lines('/api/chat', { ...body, messages, stream: false })
      expect(after).toMatchObject([{ message: { content: 'It is cold.' } }])
    },
    thought: async () => {
      const body = { model: 'goose:latest', messages: ASK, stream: true, think: true, tools: [] }
      expect(thoughtOf(await lines('/api/chat', body))).toBe('Hm.\n')
    },
  },
  'Cline, OpenAI compatible': {
    stream: async () => {
      const said = await cline([])
      expect(said.flatMap(({ choices }) => choices[0]?.delta.content ?? []).join('')).toBe('Yes.')
      // It reports the cost of a task.
      expect(said.at(-1)!.usage).toMatchObject({ prompt_tokens_details: { cached_tokens: 0 } })
    },
    tools: async () => {
      const said = await cline([{ type: 'function', function: chatTool.function }])
      const calls = said.flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? [])
      expect(calls[0]).toMatchObject({ index: 0, function: { name: 'weather' } })
      const given = calls.map((call) => call.function?.arguments ?? '').join('')
      expect(JSON.parse(given)).toEqual({ place: 'Oslo' })
    },
  },
  'Claude Code': {
    stream: async () => {
      const body = { ...claudeCode(), tools: [] }
      expect(await send('/v1/messages?beta=true', body)).toContain('event: message_stop')
    },
    thought: async () => {
      const body = { ...claudeCode(), tools: [] }
      // If asked to leave them out, it shows none.
      expect(await send('/v1/messages?beta=true', body)).not.toContain('thinking_delta')
    },
    tools: async () => {
      const reply = await send('/v1/messages?beta=true', claudeCode())
      expect(reply).toContain('"stop_reason":"tool_use"')
    },
  },
  'llama.vim, llama.vscode': {
    answer: async () => {
      const body = { input_prefix: 'a', input_suffix: 'c', n_predict: 16, cache_prompt: true }
      expect(JSON.parse(await send('/infill', body))).toHaveProperty('timings')
    },
  },
  'SillyTavern, llama.cpp server': {
    models: async () => expect(JSON.parse(await send('/props'))).toHaveProperty('chat_template'),
    stream: async () => {
      const body = { prompt: 'Hi', stream: true, n_predict: -1, mirostat: 0, mirostat_tau: 5 }
      const off = { dry_multiplier: 0, dry_base: 1.75, xtc_probability: 0, xtc_threshold: 0.1 }
      expect(await send('/completion', { ...body, ...off, samplers: ['top_k'] })).toContain('"stop":true')
    },
  },
}

const calledWeather = {
  role: 'assistant',
  content: '',
  tool_calls: [{ function: { name: 'weather', arguments: { place: 'Oslo' } } }],
}

/** The thought in a stream of Ollama objects. */
function thoughtOf(objects: readonly object[]): string {
  const messages = objects as readonly { readonly message: { readonly thinking?: string } }[] // /api/chat
  return messages.map(({ message }) => message.thinking ?? '').join('')
}

async function expectVectors(model: string): Promise<void> {
  const [reply] = await lines('/api/embed', { model, input: ['ab', 'ba'] })
  const { embeddings } = reply as { embeddings: number[][] } // the fields of the route
  expect(embeddings).toHaveLength(2)
  expect(embeddings[0]).toEqual(embeddings[1])
}

/** The chunks of one turn: a system prompt, content in parts, usage in the stream. */
async function cline(tools: OpenAI.ChatCompletionTool[]) {
  const stream = await openai().chat.completions.create({
    model: 'goose',
    messages: [
      { role: 'system', content: 'You are Cline.' },
      {
        role: 'user',
        content: [
          { type: 'text', text: '<task>\nWeather?\n</task>' },
          { type: 'text', text: '<environment_details>\n</environment_details>' },
        ],
      },
    ],
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
    ...(tools.length === 0 ? {} : { tools }),
  })
  const chunks: OpenAI.ChatCompletionChunk[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return chunks
}

function claudeCode(): object {
  const cache_control = { type: 'ephemeral' }
  return {
    model: 'goose',
    max_tokens: 64_000,
    stream: true,
    system: [{ type: 'text', text: 'You are an agent.', cache_control }],
    messages: [
      {
        role: 'user',
        content: [
          { type: 'text', text: '<system-reminder>' },
          { type: 'text', text: 'Weather?', cache_control },
        ],
      },
    ],
    tools: [messagesTool],
    thinking: { type: 'adaptive', display: 'omitted' },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'high' },
    metadata: { user_id: 'someone' },
  }
}

describe.each(Object.entries(CLIENTS))('%s', (_name, row) => {
  test.each(Object.entries(row))('%s', async (_feature, check) => {
    await check()
  })
})

test('docs/clients.md has this table', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/clients.md'), 'utf8')
  const cells = (row: Row) => FEATURES.map((feature) => (feature in row ? '✔' : '·'))
  const rows = Object.entries(CLIENTS).map(([name, row]) => [name, ...cells(row)])
  const table = [['', ...FEATURES], ['---', ...FEATURES.map(() => ':-:')], ...rows]
  expect(page).toContain(table.map((row) => `| ${row.join(' | ')} |`).join('\n'))
})
