/** Rows 6.3 and 6.4: rwkv_lightning's README and tutorial, with their fields and our own texts. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEMO, type RunningServer, serve } from '../helpers/cli.ts'
import {
  type Client,
  CREATIVE,
  clientOf,
  expectOneParagraph,
  type Json,
  PASSWORD,
  payloadsOf,
  rowsStreamed,
  rowsWhole,
  STEADY,
  STOPS,
} from './kit.ts'

const GREEDY = { temperature: 0.8, top_k: 1, top_p: 0, alpha_presence: 0, alpha_frequency: 0, alpha_decay: 0.996 }
const NIGHT =
  'English: During the storm the old oak behind the school was split in two, and in the morning the children stood around it in silence.\n\nChinese:'
const WEEKS =
  'English: For a month nobody spoke of the letter. Then one evening, while they were walking along the harbour, Anna took it out of her coat and read it aloud. Her brother listened, and said that he would leave with the next ship.\n\nChinese:'
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
const ROWS = { contents: [WEEKS, NIGHT], max_tokens: 1024, ...STOPS, ...CREATIVE }
const SAME_ROWS = { contents: [WEEKS, NIGHT], max_tokens: 1024, ...STOPS, ...STEADY }
const FIM = '/FIM/v1/batch-FIM'
const STATE = '/state/chat/completions'
const TRANSLATE = '/translate/v1/batch-translate'
const OPENAI = '/openai/v1/chat/completions'

interface Session {
  readonly session_id: string
  readonly cache_level: string
}

const dataDir = () => mkdtempSync(join(tmpdir(), 'skein-acceptance-'))

/** A server started as in the documents, and a client, for the tests of a block. */
function served(...args: readonly string[]): { readonly client: Client } {
  const given: { client: Client } = { client: clientOf({ url: 'http://not.started' }) }
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['--model-path', DEMO, ...args])
    Object.assign(given, { client: clientOf(server) })
  })
  afterAll(async () => {
    expect(await server.stop()).toBe(0)
  })
  return given
}

async function sessionsOf(client: Client): Promise<readonly Session[]> {
  const body = { password: PASSWORD }
  const reply = await client.ask<Json & { sessions: Session[] }>('/state/status', body)
  expect(reply.status).toBe('success')
  return reply.sessions
}

async function expectStateRow(client: Client, prompt: string, session_id: string): Promise<void> {
  const body = { contents: [prompt], max_tokens: 256, ...STOPS, ...CREATIVE, session_id }
  await rowsStreamed(client, STATE, { ...body, chunk_size: 128 }, 1)
  await rowsWhole(client, STATE, body, { id: 'rwkv7-batch', count: 1 })
  const level = (await sessionsOf(client)).find((session) => session.session_id === session_id)
  expect(level?.cache_level).toBe('L1 (VRAM)')
}

async function expectDeletes(client: Client, session_id: string): Promise<void> {
  const remove = (id: string) => client.post('/state/delete', { session_id: id, password: PASSWORD })
  const unknown = await remove('your_session_id_to_delete')
  expect(unknown.status).toBe(404)
  expect(await unknown.json()).toMatchObject({ status: 'not_found' })
  const known = await remove(session_id)
  expect(known.status).toBe(200)
  expect(await known.json()).toMatchObject({ status: 'success' })
  expect((await sessionsOf(client)).map((session) => session.session_id)).not.toContain(session_id)
}

async function expectTranslations(client: Client, language: 'en' | 'zh-CN'): Promise<void> {
  const body =
    language === 'en'
      ? { source_lang: 'en', target_lang: 'zh-CN', text_list: ['Hello world!', 'Good morning'] }
      : { source_lang: 'zh-CN', target_lang: 'en', text_list: ['你好世界', '早上好'] }
  const { translations } = await client.ask<{ translations: Json[] }>(TRANSLATE, body)
  expect(translations).toHaveLength(2)
  for (const translation of translations) {
    expect(translation).toMatchObject({ detected_source_lang: language })
    expect(translation.text).not.toBe('')
  }
  expect(await client.ask(TRANSLATE, body)).toEqual({ translations })
}

describe('6.3 rwkv_lightning, January 2026', () => {
  const it = served('--password', PASSWORD, '--open-translate')
  const texts: Record<string, readonly string[]> = {}
  const pairs = { ...PAIRS, max_tokens: 1024, ...STOPS, ...CREATIVE }
  const pair = { ...PAIR, max_tokens: 4096, ...STOPS, ...GREEDY }

  test('6.3/1 FIM, three pairs, streamed', async () => {
    expectOneParagraph(await rowsStreamed(it.client, FIM, pairs, 3))
  })
  test('6.3/2 FIM, three pairs, whole', async () => {
    const shape = { id: 'rwkv7-batch', object: 'FIM.completion', count: 3 }
    expectOneParagraph(await rowsWhole(it.client, FIM, pairs, shape))
  })
  test('6.3/3 FIM, one pair, streamed: the same on repeat', async () => {
    texts.pair = await rowsStreamed(it.client, FIM, { ...pair, chunk_size: 64 }, 1)
    expect(await rowsStreamed(it.client, FIM, { ...pair, chunk_size: 64 }, 1)).toEqual(texts.pair)
  })
  test('6.3/4 FIM, one pair, whole: the text of row 3', async () => {
    const shape = { id: 'rwkv7-batch-v3', count: 1 }
    expect(await rowsWhole(it.client, FIM, pair, shape)).toEqual(texts.pair)
  })
  test('6.3/5 translate en → zh-CN without a password', () => expectTranslations(it.client, 'en'))
  test('6.3/6 translate zh-CN → en', () => expectTranslations(it.client, 'zh-CN'))

  test('6.3/7 /v1, two contents, streamed: a paragraph each', async () => {
    expectOneParagraph(await rowsStreamed(it.client, '/v1/chat/completions', ROWS, 2))
  })
  test('6.3/8 /v1, whole', async () => {
    const shape = { id: 'rwkv7-batch', count: 2 }
    expectOneParagraph(await rowsWhole(it.client, '/v1/chat/completions', ROWS, shape))
  })
  test('6.3/9 /v2, streamed: the same on repeat', async () => {
    const body = { ...SAME_ROWS, chunk_size: 128 }
    texts.v2 = await rowsStreamed(it.client, '/v2/chat/completions', body, 2)
    expect(await rowsStreamed(it.client, '/v2/chat/completions', body, 2)).toEqual(texts.v2)
  })
  test('6.3/10 /v2, whole: the text of row 9', async () => {
    const shape = { id: 'rwkv7-batch', count: 2 }
    const body = { ...SAME_ROWS, chunk_size: 32 }
    expect(await rowsWhole(it.client, '/v2/chat/completions', body, shape)).toEqual(texts.v2)
  })

  const thought = {
    messages: [{ role: 'user', content: 'What is the capital of France?' }],
    max_tokens: 1024,
    ...STOPS,
    ...STEADY,
    chunk_size: 128,
    enable_think: true,
  }
  test('6.3/11 /v3 with a thought, streamed: begins with ">" and ends at a blank line', async () => {
    texts.v3 = await rowsStreamed(it.client, '/v3/chat/completions', thought, 1)
    expect(texts.v3[0]).toMatch(/^>/)
    expectOneParagraph(texts.v3)
  })
  test('6.3/12 /v3, whole', async () => {
    const shape = { id: 'rwkv7-batch-v3', count: 1 }
    expect(await rowsWhole(it.client, '/v3/chat/completions', thought, shape)).toEqual(texts.v3)
  })

  // Escaped twice, as in the document: the model sees a backslash and an n.
  const escaped = 'User: What could we cook tonight? Two short ideas, please.\\n\\nAssistant: <think>\\n</think>\\n'
  test('6.3/13-15 /state, streamed and whole, and its place in /state/status', async () => {
    await expectStateRow(it.client, escaped, 'session_one')
    const auth = { authorization: `Bearer ${PASSWORD}` }
    const count = await it.client.ask<{ count?: number }>('/v1/tokens/count', { text: escaped }, auth)
    const straight = await it.client.ask<{ count?: number }>(
      '/v1/tokens/count',
      { text: escaped.replaceAll('\\n', '\n') },
      auth,
    )
    expect(count).not.toEqual(straight)
  })
  test('6.3/16 /state/delete: 404 for the unknown, success for the known', () =>
    expectDeletes(it.client, 'session_one'))

  test('a wrong or missing password is 401 with a string', async () => {
    for (const password of [undefined, 'rwkv7']) {
      const reply = await it.client.post('/v1/chat/completions', { ...ROWS, password })
      expect(reply.status).toBe(401)
      expect(await reply.json()).toEqual({ error: 'Unauthorized: invalid or missing password' })
    }
  })
})

describe('6.3 across restarts and tiers', () => {
  const turn = (session_id: string) => ({
    contents: ['User: What is the capital of France?\n\nAssistant:'],
    max_tokens: 8,
    ...GREEDY,
    session_id,
    password: PASSWORD,
  })

  test('6.3/17 after a restart the session is in "Database (Disk)", and continues', { tags: 'night' }, async () => {
    const args = ['--model-path', DEMO, '--password', PASSWORD, '--data-dir', dataDir()]
    const first = await serve(args)
    await clientOf(first).ask(STATE, turn('session_one'))
    expect(await first.stop()).toBe(0)
    const second = await serve(args)
    try {
      const client = clientOf(second)
      expect(await sessionsOf(client)).toMatchObject([{ session_id: 'session_one', cache_level: 'Database (Disk)' }])
      await client.ask(STATE, turn('session_one'))
      const auth = { authorization: `Bearer ${PASSWORD}` }
      const reply = await client.get('/v1/sessions/session_one', auth)
      expect(await reply.json()).toMatchObject({ head: 2 })
    } finally {
      expect(await second.stop()).toBe(0)
    }
  })

  test('6.3/18 the 17th session moves the oldest to RAM, the 49th to the database', { tags: 'night' }, async () => {
    const server = await serve(['--model-path', DEMO, '--password', PASSWORD, '--slots', '64'])
    try {
      const client = clientOf(server)
      const levelOf = async (id: string) =>
        (await sessionsOf(client)).find((session) => session.session_id === id)?.cache_level
      for (let i = 1; i <= 16; i++) await client.ask(STATE, turn(`s${i}`))
      expect(await levelOf('s1')).toBe('L1 (VRAM)')
      await client.ask(STATE, turn('s17'))
      await expect.poll(() => levelOf('s1')).toBe('L2 (RAM)')
      expect(await levelOf('s17')).toBe('L1 (VRAM)')
      for (let i = 18; i <= 48; i++) await client.ask(STATE, turn(`s${i}`))
      await expect.poll(() => levelOf('s32')).toBe('L2 (RAM)')
      expect(await levelOf('s1')).toBe('L2 (RAM)')
      await client.ask(STATE, turn('s49'))
      await expect.poll(() => levelOf('s1'), { timeout: 10_000 }).toBe('Database (Disk)')
      expect(await levelOf('s49')).toBe('L1 (VRAM)')
      // And back: it continues where it was.
      await client.ask(STATE, turn('s1'))
      expect(await levelOf('s1')).toBe('L1 (VRAM)')
    } finally {
      expect(await server.stop()).toBe(0)
    }
  })
})

describe('6.3/19 without --password', () => {
  const it = served()
  test('6.3/19 no password is required', async () => {
    const reply = await it.client.post('/v1/chat/completions', { ...ROWS, stream: false })
    expect(reply.status).toBe(200)
  })
})

describe('6.4 rwkv_lightning, the tutorial of May 2026', () => {
  const it = served('--password', PASSWORD, '--open-translate')
  const auth = { authorization: `Bearer ${PASSWORD}` }
  const texts: Record<string, readonly string[]> = {}
  const question = 'please tell me how people learned to make paper'
  const openai = { model: 'rwkv7', top_p: 0.6, max_tokens: 256 }

  test('6.4/1 /v1, streamed', async () => {
    expectOneParagraph(await rowsStreamed(it.client, '/v1/chat/completions', ROWS, 2))
  })
  test('6.4/2 /v1, whole', async () => {
    const shape = { id: 'rwkv7-batch', count: 2 }
    expectOneParagraph(await rowsWhole(it.client, '/v1/chat/completions', ROWS, shape))
  })
  test('6.4/3 /v2, streamed', async () => {
    const body = { ...SAME_ROWS, chunk_size: 128 }
    texts.v2 = await rowsStreamed(it.client, '/v2/chat/completions', body, 2)
  })
  test('6.4/4 /v2, whole: the text of row 3', async () => {
    const shape = { id: 'rwkv7-batch', count: 2 }
    const body = { ...SAME_ROWS, chunk_size: 32 }
    expect(await rowsWhole(it.client, '/v2/chat/completions', body, shape)).toEqual(texts.v2)
  })
  test('6.4/5 /big_batch: two identical prompts are two draws', async () => {
    const contents = [NIGHT, NIGHT]
    const body = { contents, max_tokens: 64, temperature: 1, chunk_size: 8, ...STOPS }
    const rows = await Promise.all([1, 2, 3].map(() => rowsStreamed(it.client, '/big_batch/completions', body, 2)))
    expect(rows.some(([a, b]) => a !== b)).toBe(true)
  })
  test('6.4/6 /openai, streamed: role first, then text, then the finish reason', async () => {
    const messages = [{ role: 'user', content: question }]
    const body = { ...openai, messages, temperature: 0.8, stream: true }
    const reply = await it.client.post(OPENAI, body, auth)
    const payloads = payloadsOf(await reply.text())
    expect(payloads.at(-1)).toBe('[DONE]')
    const choices = (payloads.slice(0, -1) as { choices: Json[] }[]).map(({ choices }) => choices[0])
    expect(choices[0]).toMatchObject({ delta: { role: 'assistant' } })
    expect(choices.at(-1)).toMatchObject({ delta: {}, finish_reason: expect.stringMatching(/stop|length/) })
  })

  const system = { role: 'system', content: 'You are a helpful assistant.' }
  const whole = (content: string, fields = {}) =>
    it.client.ask<Json>(
      OPENAI,
      { ...openai, messages: [system, { role: 'user', content }], temperature: 1, ...fields },
      auth,
    )
  test('6.4/7 /openai, whole, with usage', async () => {
    const reply = await whole(question)
    expect(reply.id).toMatch(/^chatcmpl-/)
    const usage = reply.usage as Record<string, number>
    expect(usage.total_tokens).toBe(usage.prompt_tokens! + usage.completion_tokens!)
    expect(reply.choices).toMatchObject([{ finish_reason: expect.stringMatching(/stop|length/) }])
  })
  test('6.4/8 /openai: stateless without session_id, and a conversation with one', async () => {
    const next = 'Go on from there and name three short examples.'
    const alone = (await whole(next)).usage as Record<string, number>
    expect((await whole(next)).usage).toMatchObject({ prompt_tokens: alone.prompt_tokens })
    const session_id = 'tutorial'
    await whole(question, { session_id })
    await it.client.ask(OPENAI, { ...openai, messages: [{ role: 'user', content: next }], session_id }, auth)
    const session = await it.client.get(`/v1/sessions/${session_id}`, auth)
    expect(await session.json()).toMatchObject({ head: 2, turns: [{ turn: 1 }, { turn: 2 }] })
  })
  test('6.4/9 translate en → zh-CN', () => expectTranslations(it.client, 'en'))
  test('6.4/10 translate zh-CN → en', () => expectTranslations(it.client, 'zh-CN'))

  const prompt = 'User: What could we cook tonight? Two short ideas, please.\n\nAssistant: <think>\n</think>\n'
  test('6.4/11-13 /state, streamed and whole, and /state/status', () =>
    expectStateRow(it.client, prompt, 'session_one'))
  test('6.4/14 /state/delete', () => expectDeletes(it.client, 'session_one'))
})
