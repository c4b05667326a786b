/**
 * The examples of the five documents that Skein implements, with their fields as they stand there and texts of our own, sent
 * to the demo model: what must be observed of structure, indices, stops and determinism. Those about flags are in
 * foreign-flags.test.ts, those about loading models in infer.test.ts.
 */
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Llm } from '../../src/index.ts'
import { hasDemo, serveDemo } from './demo.ts'
import { eventsOf } from './kit.ts'

const PASSWORD = 'rwkv7_7.2b'
const STOPS = { stop_tokens: [0, 261, 24281] }
const CREATIVE = {
  temperature: 0.8,
  top_k: 50,
  top_p: 0.6,
  alpha_presence: 1.0,
  alpha_frequency: 0.1,
  alpha_decay: 0.99,
}
const STEADY = {
  temperature: 1.0,
  top_k: 1,
  top_p: 0.3,
  pad_zero: true,
  alpha_presence: 0.8,
  alpha_frequency: 0.8,
  alpha_decay: 0.996,
}
const GREEDY = {
  temperature: 0.8,
  top_k: 1,
  top_p: 0,
  alpha_presence: 0,
  alpha_frequency: 0,
  alpha_decay: 0.996,
}
const NIGHT =
  'English: During the storm the old oak behind the school was split in two, and in the morning the children stood around it in silence.\n\nChinese:'
const WEEKS =
  'English: For a month nobody spoke of the letter. Then one evening, while they were walking along the harbour, Anna took it out of her coat and read it aloud from the first line to the last. Her brother listened, looked at the ships, and said that he would leave with the next one.\n\nChinese:'
const PAIRS = {
  prefix: [
    'The market had closed, but the smell of oranges still hung between the stalls.',
    'He couldn’t say how long he’d been standing there.',
    'An empty tram came round the corner,',
  ],
  suffix: [
    'although the baker swore that nobody had crossed the square since noon.',
    'like a word in a language he’d forgotten.',
    'Then, behind the third window, somebody struck a match.',
  ],
}
const PAIR = { prefix: [PAIRS.prefix[2]], suffix: [PAIRS.suffix[2]] }

describe.skipIf(!hasDemo)('the documents', () => {
  let app: FastifyInstance
  let llm: Llm
  beforeAll(async () => {
    ;({ app, llm } = await serveDemo({ keys: [PASSWORD], openTranslate: true }))
  })
  afterAll(async () => {
    await app.close()
    await llm.close()
  })

  const send = async (url: string, body: object, headers = {}) => {
    const reply = await app.inject({ method: 'POST', url, payload: body, headers })
    expect(reply.statusCode, reply.body).toBe(200)
    return reply
  }
  /** Shape N: choices by index, one per input. */
  const whole = async (
    url: string,
    body: object,
    id: string,
    count: number,
    object = 'chat.completion',
  ) => {
    const reply = (await send(url, { ...body, stream: false, password: PASSWORD })).json()
    expect(reply).toMatchObject({ id, object })
    const choices = reply.choices as { index: number; message: { role: string; content: string } }[]
    expect(choices.map(({ index }) => index)).toEqual(Array.from({ length: count }, (_, i) => i))
    for (const { message } of choices) expect(message.role).toBe('assistant')
    return choices.map(({ message }) => message.content)
  }
  /** Shape B: the text of each row. */
  const streamed = async (url: string, body: object, count: number) => {
    const reply = await send(url, { ...body, stream: true, password: PASSWORD })
    expect(reply.headers['content-type']).toContain('text/event-stream')
    const events = eventsOf(reply.body)
    expect(events.at(-1)).toBe('[DONE]')
    const texts = Array<string>(count).fill('')
    for (const event of events.slice(0, -1)) {
      const { object, choices } = event as {
        object: string
        choices: { index: number; delta: { content: string } }[]
      }
      expect(object).toBe('chat.completion.chunk')
      expect(choices.length).toBeGreaterThan(0)
      for (const { index, delta } of choices) {
        expect(index).toBeLessThan(count)
        texts[index] += delta.content
      }
    }
    return texts
  }
  const endsAtParagraph = (texts: readonly string[]) => {
    for (const text of texts) expect(text).not.toContain('\n\n')
  }

  describe('rwkv_lightning', () => {
    const FIM = '/FIM/v1/batch-FIM'
    const BATCH = { contents: [WEEKS, NIGHT], max_tokens: 1024, ...STOPS, ...CREATIVE }
    const SAME = { contents: [WEEKS, NIGHT], max_tokens: 1024, ...STOPS, ...STEADY }

    test('FIM of three pairs, streamed and whole', async () => {
      const body = { ...PAIRS, max_tokens: 1024, ...STOPS, ...CREATIVE }
      endsAtParagraph(await streamed(FIM, body, 3))
      endsAtParagraph(await whole(FIM, body, 'rwkv7-batch', 3, 'FIM.completion'))
    })

    test('FIM of one pair is the same text every time', async () => {
      const body = { ...PAIR, max_tokens: 4096, ...STOPS, ...GREEDY }
      const texts = await streamed(FIM, { ...body, chunk_size: 64 }, 1)
      expect(await streamed(FIM, { ...body, chunk_size: 64 }, 1)).toEqual(texts)
      expect(await whole(FIM, body, 'rwkv7-batch-v3', 1)).toEqual(texts)
    })

    test.each([
      [
        { source_lang: 'en', target_lang: 'zh-CN', text_list: ['Hello world!', 'Good morning'] },
        'en',
      ],
      [{ source_lang: 'zh-CN', target_lang: 'en', text_list: ['你好世界', '早上好'] }, 'zh-CN'],
    ])('translate %o without a password', async (body, language) => {
      const path = '/translate/v1/batch-translate'
      const { translations } = (await send(path, body)).json()
      expect(translations).toHaveLength(2)
      for (const translation of translations) {
        expect(translation).toMatchObject({ detected_source_lang: language })
        expect(translation.text).not.toBe('')
      }
      expect((await send(path, body)).json()).toEqual({ translations })
    })

    test('/v1: two rows, a paragraph each', async () => {
      endsAtParagraph(await streamed('/v1/chat/completions', BATCH, 2))
      endsAtParagraph(await whole('/v1/chat/completions', BATCH, 'rwkv7-batch', 2))
    })

    test('/v2: the same text streamed and whole', async () => {
      const path = '/v2/chat/completions'
      const texts = await streamed(path, { ...SAME, chunk_size: 128 }, 2)
      expect(await whole(path, { ...SAME, chunk_size: 32 }, 'rwkv7-batch', 2)).toEqual(texts)
    })

    test('/v3: the thought of a question', async () => {
      const path = '/v3/chat/completions'
      const body = {
        messages: [{ role: 'user', content: 'What is the capital of France?' }],
        max_tokens: 1024,
        ...STOPS,
        ...STEADY,
        chunk_size: 128,
        enable_think: true,
      }
      const texts = await streamed(path, body, 1)
      endsAtParagraph(texts)
      expect(await whole(path, body, 'rwkv7-batch-v3', 1)).toEqual(texts)
    })

    test('/big_batch: two identical prompts are two draws', async () => {
      const body = {
        contents: [NIGHT, NIGHT],
        max_tokens: 1024,
        ...STOPS,
        temperature: 1.0,
        chunk_size: 8,
      }
      endsAtParagraph(await streamed('/big_batch/completions', body, 2))
    })

    test('/openai: a stream, and a whole reply', async () => {
      const path = '/openai/v1/chat/completions'
      const headers = { authorization: `Bearer ${PASSWORD}` }
      const question = 'please tell me how people learned to make paper'
      const shared = { model: 'rwkv7', top_p: 0.6, max_tokens: 2048 }
      const asked = { ...shared, messages: [{ role: 'user', content: question }], temperature: 0.8 }
      const events = eventsOf((await send(path, { ...asked, stream: true }, headers)).body)
      const choices = (
        events.slice(0, -1) as { choices: [{ delta: object; finish_reason: unknown }] }[]
      ).map((event) => event.choices[0])
      expect(choices[0]!.delta).toMatchObject({ role: 'assistant' })
      expect(choices.at(-1)).toMatchObject({
        delta: {},
        finish_reason: expect.stringMatching(/stop|length/),
      })
      const system = { role: 'system', content: 'You are a helpful assistant.' }
      for (const content of [question, 'Go on from there and name three short examples.']) {
        const messages = [system, { role: 'user', content }]
        const body = { ...shared, messages, temperature: 1, stream: false }
        const reply = (await send(path, body, headers)).json()
        expect(reply.id).toMatch(/^chatcmpl-/)
        expect(reply.usage.total_tokens).toBe(
          reply.usage.prompt_tokens + reply.usage.completion_tokens,
        )
        expect(['stop', 'length']).toContain(reply.choices[0].finish_reason)
      }
    })

    test.each([
      [
        'escaped twice',
        'User: What could we cook tonight? Two short ideas, please.\\n\\nAssistant: <think>\\n</think>\\n',
      ],
      [
        'escaped once',
        'User: What could we cook tonight? Two short ideas, please.\n\nAssistant: <think>\n</think>\n',
      ],
    ])('/state, %s: a session that goes on, is listed and deleted', async (name, prompt) => {
      const session_id = `session_one ${name}`
      const path = '/state/chat/completions'
      const body = { contents: [prompt], max_tokens: 1024, ...STOPS, ...CREATIVE, session_id }
      await streamed(path, { ...body, chunk_size: 128 }, 1)
      await whole(path, body, 'rwkv7-batch', 1)
      const listed = (await send('/state/status', { password: PASSWORD })).json()
      expect(listed.status).toBe('success')
      expect(listed.sessions).toContainEqual(
        expect.objectContaining({ session_id, cache_level: 'L1 (VRAM)' }),
      )
      const turns = await app.inject({
        url: `/v1/sessions/${encodeURIComponent(session_id)}`,
        headers: { authorization: `Bearer ${PASSWORD}` },
      })
      expect(turns.json().turns).toHaveLength(2)
      const remove = (id: string) =>
        app.inject({
          method: 'POST',
          url: '/state/delete',
          payload: { session_id: id, password: PASSWORD },
        })
      const unknown = await remove('your_session_id_to_delete')
      expect(unknown.statusCode).toBe(404)
      expect(unknown.json().status).toBe('not_found')
      expect((await remove(session_id)).json().status).toBe('success')
    })

    test('a wrong or missing password is refused with a string', async () => {
      for (const password of [undefined, 'rwkv7']) {
        const payload = { ...BATCH, stream: false, password }
        const reply = await app.inject({ method: 'POST', url: '/v1/chat/completions', payload })
        expect(reply.statusCode).toBe(401)
        expect(reply.json()).toEqual({ error: 'Unauthorized: invalid or missing password' })
      }
    })
  })

  describe('conRWKV', () => {
    const body = {
      model: 'rwkv',
      prompt: 'The capital of France is',
      temperature: 0.0,
      best_of: 1,
      max_tokens: 24,
      ignore_eos: true,
    }
    const headers = { authorization: `Bearer ${PASSWORD}` }

    test('what its benchmark client reads of a stream', async () => {
      const reply = await send('/v1/completions', { ...body, stream: true }, headers)
      const events = eventsOf(reply.body)
      expect(events.at(-1)).toBe('[DONE]')
      const texts = (events.slice(0, -1) as { choices: { text: string }[] }[]).map(
        ({ choices }) => choices[0]!.text,
      )
      expect(texts.every((text) => typeof text === 'string')).toBe(true)
      const again = (await send('/v1/completions', body, headers)).json()
      expect(texts.join('')).toBe(again.choices[0].text)
    })

    test('exactly max_tokens, whatever the model would have stopped at', async () => {
      const { usage, choices } = (await send('/v1/completions', body, headers)).json()
      expect(usage.completion_tokens).toBe(24)
      expect(choices[0].finish_reason).toBe('length')
    })

    test('48 at once all succeed', async () => {
      const replies = await Promise.all(
        Array.from({ length: 48 }, () =>
          app.inject({ method: 'POST', url: '/v1/completions', payload: body, headers }),
        ),
      )
      const texts = new Set(replies.map((reply) => reply.json().choices[0].text))
      expect(replies.map(({ statusCode }) => statusCode)).toEqual(Array(48).fill(200))
      expect(texts.size).toBe(1)
    })
  })
})
