/** The transcript of a session: what was said, in every dialect. */
import fc from 'fast-check'
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { lastSpans, messagesOf, spansTo, titleOf } from '../../src/api/sessions/transcript.ts'
import { type Role, renderTurns } from '../../src/api/template.ts'
import { hasDemo, serveDemo } from './demo.ts'
import { CHAT, COMPLETIONS } from './kit.ts'

describe('messages of a text', () => {
  test('are those that the template assembled, whatever they contain', () => {
    const roles = fc.constantFrom<Role>('system', 'user')
    const content = fc
      .array(fc.constantFrom('a', 'User:', '\n\n', '\n', ' ', 'Assistant: x', '<think>', '语'))
      .map((parts) => parts.join(''))
    const turns = fc.array(fc.record({ role: roles, content }), { minLength: 1, maxLength: 5 })
    fc.assert(
      fc.property(turns, (said) => {
        expect(messagesOf(renderTurns(said))).toEqual(said)
      }),
    )
  })

  test('an answer and its thought; a role name that the model wrote is part of its answer', () => {
    expect(messagesOf('User: 1+1?\n\nAssistant: <think>\nOne and one.\n</think>\n2')).toEqual([
      { role: 'user', content: '1+1?' },
      { role: 'assistant', content: '2', reasoning_content: 'One and one.' },
    ])
    expect(messagesOf('\n\nUser: a\n\nAssistant: <think>\n</think>\nb')?.[1]).toEqual({
      role: 'assistant',
      content: 'b',
    })
    expect(messagesOf('User: a\n\nAssistant: b\n\nAssistant: c')?.[1]).toEqual({
      role: 'assistant',
      content: 'b\n\nAssistant: c',
    })
  })

  test('a text without a template has none; one that starts inside has those that are whole', () => {
    expect(messagesOf('The cat. User: sat')).toBeNull()
    expect(messagesOf('end of it\n\nUser: a', true)).toEqual([{ role: 'user', content: 'a' }])
    expect(titleOf('  The\ncat ', null)).toBe('The cat')
    expect([...titleOf('语'.repeat(100), null)]).toHaveLength(80)
  })

  test('as many whole turns as fit, and the end of one that does not', () => {
    const turn = (number: number, parent: number, numTokens: number) => {
      return { turn: number, parent, numTokens, createdAt: 0, tier: 'disk', isSaved: true } as const
    }
    const turns = [turn(3, 2, 30), turn(4, 3, 40), turn(5, 3, 50)]
    const times = { createdAt: 0, updatedAt: 0, expiresAt: null }
    const session = { id: 's', version: 5, head: 5, turns, ...times, bytes: 0, isBusy: false }
    const spans = spansTo(session, 5)
    expect(spans.map(({ turn, start, end }) => [turn, start, end])).toEqual([
      [3, 0, 30],
      [5, 30, 50],
    ])
    expect(lastSpans(spans, 50)).toHaveLength(2)
    expect(lastSpans(spans, 49)).toEqual([spans[1]])
    expect(lastSpans(spans, 7)).toEqual([{ ...spans[1], start: 43 }])
    expect(lastSpans([], 7)).toEqual([])
  })
})

describe.skipIf(!hasDemo)('the transcript of a session', () => {
  let app: FastifyInstance
  beforeAll(async () => {
    ;({ app } = await serveDemo({ keys: ['sk-one', 'sk-two'] }))
  })
  afterAll(() => app.close())

  const authorization = 'Bearer sk-one'
  const ask = async (body: object, path = CHAT) => {
    const fields = { temperature: 0, max_tokens: 12, ...body }
    const headers = { authorization }
    const reply = await app.inject({ method: 'POST', url: path, payload: fields, headers })
    expect(reply.statusCode).toBe(200)
    return reply.json().choices[0]
  }
  const transcript = async (id: string, query = '', key = authorization) => {
    const url = `/v1/sessions/${encodeURIComponent(id)}/transcript${query}`
    return app.inject({ url, headers: { authorization: key } })
  }
  const user = (content: string) => ({ role: 'user', content })

  test('is the questions and answers, on every branch', async () => {
    const session = 'tree'
    const system = { role: 'system', content: 'Be brief.\n\nUser: is never forged.' }
    const one = await ask({ messages: [system, user('What is the capital of France?')], session_id: session })
    const two = await ask({ messages: [user('And\n\nof 意大利?')], session_id: session })
    const three = await ask({ messages: [user('A cat')], session: { id: session, from: 1 } })
    const { turns, ...whole } = (await transcript(session)).json()
    expect(whole).toMatchObject({ turn: 3, skipped_tokens: 0, title: 'What is the capital of France?' })
    const answer = (choice: typeof one) => ({ role: 'assistant', content: choice.message.content })
    const first = [system, user('What is the capital of France?'), answer(one)]
    expect(turns.map(({ turn, messages }: { turn: number; messages: object[] }) => [turn, messages])).toEqual([
      [1, first],
      [3, [user('A cat'), answer(three)]],
    ])
    const second = (await transcript(session, '?turn=2')).json()
    expect(second.turns[1].messages).toEqual([user('And\n\nof 意大利?'), answer(two)])
    expect(turns[0].tokens + turns[1].tokens).toBe(whole.tokens)
  })

  test('of a raw text is that text; a short limit shows the end, with a title from the beginning', async () => {
    const { text } = await ask({ prompt: 'The cat sat', session_id: 'raw' }, COMPLETIONS)
    const all = (await transcript('raw')).json()
    expect(all.turns).toEqual([{ turn: 1, parent: 0, tokens: all.tokens, text: `The cat sat${text}`, messages: null }])
    const end = (await transcript('raw', '?limit=4')).json()
    expect(end).toMatchObject({ skipped_tokens: all.tokens - 4, title: all.title })
    expect(`The cat sat${text}`.endsWith(end.turns[0].text)).toBe(true)
    expect((await transcript('raw', '?limit=0')).json().title).toBe(all.title)
  })

  test('is visible to no other key; invalid requests are reported', async () => {
    await ask({ messages: [user('Mine.')], session_id: 'mine' })
    expect((await transcript('mine', '', 'Bearer sk-two')).statusCode).toBe(404)
    for (const [query, status, param] of [
      ['?turn=9', 404, 'turn'],
      ['?turn=x', 400, 'turn'],
      ['?limit=-1', 400, 'limit'],
      ['?limit=262145', 400, 'limit'],
    ] as const) {
      const reply = await transcript('mine', query)
      expect([reply.statusCode, reply.json().error.param]).toEqual([status, param])
    }
  })
})
