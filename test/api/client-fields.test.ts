/**
 * Fields that each client sends besides the question, and how they are handled: the table of docs/clients.md is
 * generated here.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { CHAT, COMPLETIONS, HELLO, postTo, serve } from './kit.ts'

const OLLAMA = { model: 'goose:latest', stream: false, messages: HELLO.messages }
const ANTHROPIC = { model: 'goose', max_tokens: 20, messages: HELLO.messages }
const SCHEMA_OFF = { guided_json: null, guided_regex: '', guided_choice: [], guided_grammar: '' }

/** `says`: no effect at these values; `slips`: ignored with a warning; `would`: would change the answer. */
interface Row {
  readonly route: string
  readonly body: object
  readonly says: Readonly<Record<string, unknown>>
  readonly slips: Readonly<Record<string, unknown>>
  readonly would: Readonly<Record<string, unknown>>
}

const CLIENTS: Readonly<Record<string, Row>> = {
  'OpenAI’s libraries': {
    route: CHAT,
    body: HELLO,
    says: { store: false, user: 'someone', metadata: {}, service_tier: 'auto', tools: [] },
    slips: { temprature: 0.5, maxTokens: 5 },
    would: { modalities: ['audio'], web_search_options: {} },
  },
  'the Responses API': {
    route: '/v1/responses',
    body: { model: 'goose', input: 'Hi' },
    says: { truncation: 'disabled', background: false, service_tier: 'auto', include: [] },
    slips: { max_tokens: 5, messages: [] },
    would: { truncation: 'auto', background: true },
  },
  'Anthropic’s libraries': {
    route: '/v1/messages',
    body: ANTHROPIC,
    says: { metadata: { user_id: 'someone' }, stop_sequences: [] },
    slips: { max_token: 5 },
    would: { container: 'one', mcp_servers: [{ type: 'url' }] },
  },
  'Open WebUI': {
    route: '/api/chat',
    body: OLLAMA,
    says: { keep_alive: '5m', tools: [], think: null },
    slips: { temprature: 0.5 },
    would: { options: { mirostat: 2 } },
  },
  'LM Studio’s scripts, LiteLLM': {
    route: CHAT,
    body: HELLO,
    says: { max_tokens: -1, chat_template_kwargs: { enable_thinking: false } },
    slips: { num_ctx: 4096 },
    would: { typical_p: 0.5 },
  },
  'vLLM’s clients': {
    route: CHAT,
    body: HELLO,
    says: { ...SCHEMA_OFF, skip_special_tokens: true },
    slips: { guided_decoding_backend: 'xgrammar' },
    would: { use_beam_search: true, length_penalty: 2 },
  },
  SillyTavern: {
    route: COMPLETIONS,
    body: { prompt: 'Hi' },
    says: { mirostat: 0, mirostat_tau: 5, mirostat_eta: 0.1, dry_multiplier: 0, typical_p: 1 },
    slips: { samplers: ['top_k'], repeat_last_n: 64 },
    would: { mirostat: 2, dry_multiplier: 0.8 },
  },
  'llama.cpp’s page': {
    route: '/completion',
    body: { prompt: 'Hi' },
    says: { cache_prompt: true, n_predict: -1, xtc_probability: 0 },
    slips: { samplers: ['top_k'] },
    would: { mirostat: 2 },
  },
  'RWKV-Runner': {
    route: CHAT,
    body: HELLO,
    says: { user_name: 'User', assistant_name: 'Assistant', presystem: false, top_k: 0 },
    slips: { temprature: 1 },
    would: { tfs_z: 0.5 },
  },
}

const send = (row: Row, fields: object) => postTo(serve().app, row.route, { ...row.body, ...fields })

describe.each(Object.entries(CLIENTS))('%s', (_name, row) => {
  test('neutral values are accepted without a warning, one by one and together', async () => {
    const parts = Object.entries(row.says).map(([name, value]) => ({ [name]: value }))
    for (const fields of [...parts, row.says]) {
      const reply = await send(row, fields)
      expect(reply.statusCode, `${JSON.stringify(fields)} ${reply.body}`).toBe(200)
      expect(reply.headers.warnings, JSON.stringify(fields)).toBeUndefined()
    }
  })

  test('a misspelt field is ignored with a warning', async () => {
    for (const [name, value] of Object.entries(row.slips)) {
      const reply = await send(row, { [name]: value })
      expect(reply.statusCode, `${name} ${reply.body}`).toBe(200)
      expect(reply.headers.warnings, name).toMatch(new RegExp(`^${name} `))
    }
  })

  test('a field that would change the answer is refused by name', async () => {
    for (const [name, value] of Object.entries(row.would)) {
      const reply = await send(row, { [name]: value })
      expect(reply.statusCode, `${name} ${reply.body}`).toBe(400)
      expect(reply.body, name).toContain(name)
    }
  })
})

test('docs/clients.md has this table', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/clients.md'), 'utf8')
  const cell = (fields: Readonly<Record<string, unknown>>) =>
    Object.entries(fields)
      .map(([name, value]) => `\`${name}: ${JSON.stringify(value)}\``)
      .join(', ')
  const rows = Object.entries(CLIENTS).map(([name, { route, says, slips, would }]) => {
    return `| ${name}, \`${route}\` | ${[says, slips, would].map(cell).join(' | ')} |`
  })
  expect(page).toContain(rows.join('\n'))
})
