/** Tools with the demo model: for every choice and thought the engine accepts the grammar of the answer. */
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { postTo } from './kit.ts'

const number = { type: 'integer', minimum: 0, maximum: 99 }
const schema = { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] }
const body = {
  model: 'demo',
  max_tokens: 60,
  temperature: 0,
  messages: [{ role: 'user', content: 'What is 17 plus 25?' }],
  tools: [
    { name: 'add', description: 'Adds two numbers', input_schema: schema },
    { name: 'capital_of', input_schema: { type: 'object' } },
  ],
}
const THOUGHTS = [undefined, { type: 'enabled' }, { type: 'disabled' }]
const CHOICES = [{ type: 'auto' }, { type: 'any' }, { type: 'tool', name: 'add' }, { type: 'none' }]

describe.skipIf(!hasDemo)('tools', () => {
  let app: FastifyInstance
  beforeAll(async () => {
    ;({ app } = await serveDemo())
  })
  afterAll(() => app.close())

  test.each(CHOICES)('%j', async (tool_choice) => {
    for (const thinking of THOUGHTS) {
      for (const disable_parallel_tool_use of [false, true]) {
        const choice = { ...tool_choice, disable_parallel_tool_use }
        const reply = await postTo(app, '/v1/messages', { ...body, thinking, tool_choice: choice })
        expect(reply.statusCode, reply.body).toBe(200)
        // A thought of the demo model need not end within so few tokens.
        if (thinking?.type === 'enabled') continue
        const { stop_reason, content } = reply.json()
        if (tool_choice.type === 'none') expect(stop_reason).not.toBe('tool_use')
        if (tool_choice.type !== 'tool') continue
        expect(stop_reason).toBe('tool_use')
        const { a, b } = content[0].input
        for (const value of [a, b]) expect(value >= 0 && value <= 99).toBe(true)
      }
    }
  })

  test('arguments are held to what is left of a schema without the bounds of numbers', async () => {
    const half = { type: 'number', minimum: 0, multipleOf: 0.5 }
    const input_schema = { type: 'object', properties: { minimum: half }, required: ['minimum'] }
    const asked = { tools: [{ name: 'scale', input_schema }], tool_choice: { type: 'tool', name: 'scale' } }
    const reply = await postTo(app, '/v1/messages', { ...body, ...asked })
    expect(reply.json().content).toMatchObject([{ input: { minimum: expect.any(Number) } }])
    expect(Object.keys(reply.json().content[0].input)).toEqual(['minimum'])
  })
})
