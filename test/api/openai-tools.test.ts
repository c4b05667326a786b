/** The official client's tools and formats, with the demo model: real tokens, real grammars in their threads. */
import type { FastifyInstance } from 'fastify'
import type OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { openAiOf } from './openai.ts'

const ADD = {
  type: 'function',
  function: {
    name: 'add',
    description: 'Adds two numbers.',
    parameters: {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'integer' } },
      required: ['a', 'b'],
      additionalProperties: false,
    },
    strict: true,
  },
} as const
const CAPITAL = {
  type: 'function',
  function: {
    name: 'capital_of',
    parameters: { type: 'object', properties: { country: { enum: ['France', 'Japan'] } }, required: ['country'] },
  },
} as const
const QUESTION = [{ role: 'user' as const, content: 'What is 2 + 3?' }]
const CITY = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 12 }, big: { type: 'boolean' } },
  required: ['city', 'big'],
  additionalProperties: false,
}

describe.skipIf(!hasDemo)('tools and formats', () => {
  let client: OpenAI
  let app: FastifyInstance
  beforeAll(async () => {
    ;({ app } = await serveDemo())
    client = await openAiOf(app)
  })
  afterAll(() => app.close())

  const plain = { model: 'demo', messages: QUESTION, temperature: 0, max_tokens: 120 }

  test('a required call, whole and streamed', async () => {
    const body = { ...plain, tools: [ADD, CAPITAL], tool_choice: 'required' as const }
    const { choices } = await client.chat.completions.create(body)
    const { message, finish_reason } = choices[0]!
    expect([finish_reason, message.content]).toEqual(['tool_calls', null])
    const [call] = message.tool_calls ?? []
    if (call?.type !== 'function') throw new Error('no call of a function')
    expect(['add', 'capital_of']).toContain(call.function.name)
    expect(JSON.parse(call.function.arguments)).toBeTypeOf('object')
    const stream = client.chat.completions.stream(body)
    const final = await stream.finalChatCompletion()
    const [again] = final.choices[0]!.message.tool_calls ?? []
    expect(again?.type === 'function' && again.function).toMatchObject(call.function)
    expect(final.choices[0]!.finish_reason).toBe('tool_calls')
  })

  test('a named tool, and its result sent back', async () => {
    const choice = { type: 'function', function: { name: 'add' } } as const
    const body = { ...plain, tools: [ADD, CAPITAL], tool_choice: choice }
    const { choices } = await client.chat.completions.create(body)
    const [call] = choices[0]!.message.tool_calls ?? []
    if (call?.type !== 'function') throw new Error('no call of a function')
    const args = JSON.parse(call.function.arguments) as Record<string, unknown>
    expect(Object.keys(args).sort()).toEqual(['a', 'b'])
    expect(Object.values(args).every(Number.isInteger)).toBe(true)
    const after = await client.chat.completions.create({
      ...plain,
      messages: [...QUESTION, choices[0]!.message, { role: 'tool', tool_call_id: call.id, content: '5' }],
      tools: [ADD],
    })
    expect(['stop', 'length', 'tool_calls']).toContain(after.choices[0]!.finish_reason)
  })

  test.each([
    ['none', { tool_choice: 'none' as const }],
    ['auto', {}],
  ])('optional tools: %s', async (_, choice) => {
    const reply = await client.chat.completions.create({ ...plain, tools: [ADD], ...choice })
    const { message } = reply.choices[0]!
    expect(message.content !== null || (message.tool_calls ?? []).length > 0).toBe(true)
  })

  test('JSON by a schema, with log-probabilities, penalties, several answers and a thought', async () => {
    const response_format = { type: 'json_schema' as const, json_schema: { name: 'city', schema: CITY, strict: true } }
    for (const more of [
      {},
      { logprobs: true },
      { n: 3, temperature: 1 },
      { presence_penalty: 1 },
      { reasoning_effort: 'none' as const },
    ]) {
      const reply = await client.chat.completions.create({ ...plain, response_format, ...more })
      for (const { message, finish_reason } of reply.choices) {
        expect(finish_reason).toBe('stop')
        const value = JSON.parse(message.content!) as Record<string, unknown>
        expect(Object.keys(value)).toEqual(['city', 'big'])
        expect(typeof value.big).toBe('boolean')
      }
    }
    const any = await client.chat.completions.create({
      ...plain,
      messages: [{ role: 'user', content: 'Answer in JSON. What is the capital of France?' }],
      response_format: { type: 'json_object' },
    })
    expect(JSON.parse(any.choices[0]!.message.content!)).toBeTypeOf('object')
  })

  test('beside tools the answer is a call, or of the format', async () => {
    const response_format = { type: 'json_schema' as const, json_schema: { name: 'city', schema: CITY } }
    const ask = { ...plain, tools: [ADD, CAPITAL], response_format }
    for (const more of [{}, { reasoning_effort: 'low' as const }, { reasoning_effort: 'none' as const }]) {
      const { choices } = await client.chat.completions.create({ ...ask, ...more })
      const [{ message, finish_reason } = {}] = choices
      if (finish_reason === 'tool_calls') {
        const [call] = message!.tool_calls!
        expect(call?.type === 'function' && JSON.parse(call.function.arguments)).toBeTypeOf('object')
      } else expect(Object.keys(JSON.parse(message!.content!))).toEqual(['city', 'big'])
    }
  })

  test('the fields of vLLM and llama.cpp', async () => {
    const cases: [object, RegExp][] = [
      [{ guided_choice: ['red', 'blue'] }, /^(red|blue)$/],
      [{ guided_regex: '[0-9]{3}-[a-f]{2}' }, /^[0-9]{3}-[a-f]{2}$/],
      [{ guided_json: CITY }, /^\{ ?"city"/],
      [{ structured_outputs: { choice: ['yes'] } }, /^yes$/],
      [{ grammar: 'root ::= "a" some-digits | "b" .\nsome-digits ::= [0-9]{2} # two' }, /^(a[0-9]{2}|b.)$/s],
      [{ json_schema: CITY }, /^\{ ?"city"/],
    ]
    for (const [format, shape] of cases) {
      const { choices } = await client.chat.completions.create({ ...plain, ...format })
      expect(choices[0]!.message.content, JSON.stringify(format)).toMatch(shape)
      const raw = await client.completions.create({
        model: 'demo',
        prompt: 'It is',
        max_tokens: 80,
        temperature: 0,
        ...format,
      })
      expect(raw.choices[0]!.text, JSON.stringify(format)).toMatch(shape)
    }
  })

  test('formats that cannot be enforced are refused by name', async () => {
    const schema = (schema: unknown) => ({ guided_json: schema })
    const deep = () => {
      let inner: object = { type: 'string' }
      for (let i = 0; i < 300; i++) inner = { type: 'object', properties: { a: inner } }
      return inner
    }
    const cases: [object, RegExp][] = [
      [schema({ type: 'object', patternProperties: {} }), /patternProperties/],
      [schema({ not: { type: 'string' } }), /"not"/],
      [schema({ allOf: [{ type: 'string' }, { maxLength: 2 }] }), /allOf/],
      [schema({ type: 'object', properties: { a: { $ref: 'http://x/y' } } }), /\$ref/],
      [schema({ type: 'number', minimum: 3 }), /minimum/],
      [schema({ type: 'string', pattern: '(?=a)b' }), /groups/],
      [schema({ type: 'string', maxLength: 1e9 }), /maxLength/],
      [schema(deep()), /deep/],
      [{ guided_regex: '(a{1,900}){1,1001}' }, /1000/],
      [{ guided_regex: 'a', guided_choice: ['a'] }, /one thing/],
      [{ grammar: 'root ::= "a' }, /grammar/],
      [{ response_format: { type: 'yaml' } }, /yaml/],
      [schema({ oneOf: [{ type: 'string' }, { minLength: 2 }] }), /oneOf/],
      [schema({ type: 'integer', minimum: 2e15 }), /15 digits/],
      [{ tools: [ADD, ADD] }, /two of them/],
      [{ tool_choice: 'required' }, /no tools/],
      [{ tools: [{ type: 'web_search' }] }, /no tools of its own/],
      [{ reasoning_effort: 'huge' }, /reasoning_effort/],
    ]
    for (const [format, message] of cases) {
      const asked = client.chat.completions.create({ ...plain, ...format } as typeof plain)
      await expect(asked, JSON.stringify(format).slice(0, 80)).rejects.toThrow(message)
    }
    const { choices } = await client.chat.completions.create({ ...plain, guided_choice: ['red'] } as typeof plain)
    expect(choices[0]!.message.content).toBe('red')
  })
})
