import { expect, test } from 'vitest'
import { formatFields } from '../../src/api/openai/asks/formats.ts'
import { thinkingFields } from '../../src/api/openai/asks/thinking.ts'
import { HARMLESS, NOT_IMPLEMENTED, READ_BY_SOME } from '../../src/api/openai/parameters.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { SAMPLING_ROWS } from '../../src/sampling.ts'
import { CHAT, COMPLETIONS, HELLO, postTo, serve } from './kit.ts'

const ROUTES = [
  [CHAT, HELLO],
  [COMPLETIONS, { prompt: 'Hi' }],
] as const

const DEFAULTS = {
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  penaltyDecay: 1,
  repetitionPenalty: 1,
  noise: 0,
  seed: null,
  logitBias: [],
  bannedTokens: [],
}

/** Wire fields → where they must arrive in the request to the engine. */
const HONOURED: [object, (request: GenerateRequest) => unknown, unknown][] = [
  [{}, (r) => r.sampling, DEFAULTS],
  // Every number under each of its names.
  ...SAMPLING_ROWS.flatMap(([name, { fields, min, off, int }]) => {
    const value = int === undefined ? (min + off) / 2 : 7
    return fields.map((field): (typeof HONOURED)[number] => [{ [field]: value }, (r) => r.sampling[name], value])
  }),
  [{ temperature: 0 }, (r) => r.sampling.temperature, 0],
  [{ top_k: -1 }, (r) => r.sampling.topK, 0],
  [{ presence_penalty: 0.5 }, (r) => r.sampling, { ...DEFAULTS, presencePenalty: 0.5 }],
  [{ frequency_penalty: -1 }, (r) => r.sampling, { ...DEFAULTS, frequencyPenalty: -1 }],
  [
    { alpha_presence: 1, alpha_frequency: 0.5 },
    (r) => r.sampling,
    { ...DEFAULTS, presencePenalty: 1, frequencyPenalty: 0.5, penaltyDecay: 0.996 },
  ],
  [{ alpha_presence: 1, alpha_decay: 0.99 }, (r) => r.sampling.penaltyDecay, 0.99],
  [{ alpha_presence: 1, presence_penalty: 1 }, (r) => r.sampling.presencePenalty, 1],
  [{ seed: 42 }, (r) => r.sampling.seed, 42n],
  [{ seed: -1 }, (r) => r.sampling.seed, 2n ** 64n - 1n],
  [
    { logit_bias: { 5: -100, 9: 1.5 } },
    (r) => r.sampling.logitBias,
    [
      [5, -100],
      [9, 1.5],
    ],
  ],
  [{ banned_tokens: [3, 4] }, (r) => r.sampling.bannedTokens, [3, 4]],
  [{ stop: 'END' }, (r) => r.stop.strings.includes('END'), true],
  [{ stop: ['a', 'b'] }, (r) => ['a', 'b'].every((s) => r.stop.strings.includes(s)), true],
  [{ stop_token_ids: [7] }, (r) => r.stop.tokens, [7]],
  [{ ignore_eos: true }, (r) => r.stop.ignoreEos, true],
  [{ max_tokens: 9 }, (r) => r.maxTokens, 9],
  [{ n: 2 }, (r) => r.n, 2],
  [{ n: 2, best_of: 2 }, (r) => r.n, 2],
  [{ best_of: 1 }, (r) => r.n, 1],
]

test.each(HONOURED)('%o reaches the engine', async (fields, read, expected) => {
  for (const [route, body] of ROUTES) {
    const { app, engine } = serve()
    const reply = await postTo(app, route, { ...body, ...fields })
    expect(reply.statusCode, reply.body).toBe(200)
    expect(read(engine.requests[0]!)).toEqual(expected)
  }
})

test.each([
  [{ max_completion_tokens: 9 }, 'maxTokens', 9],
  [{ max_completion_tokens: 9, max_tokens: 9 }, 'maxTokens', 9],
  [{}, 'maxTokens', 4096],
  [{ logprobs: true }, 'logprobs', 0],
  [{ logprobs: true, top_logprobs: 20 }, 'logprobs', 20],
  [{ logprobs: false, top_logprobs: 0 }, 'logprobs', null],
] as const)('chat: %o reaches the engine', async (fields, key, expected) => {
  const { app, engine } = serve()
  expect((await postTo(app, CHAT, { ...HELLO, ...fields })).statusCode).toBe(200)
  expect(engine.requests[0]![key]).toEqual(expected)
})

test('completions accept the newer name of max_tokens too', async () => {
  const { app, engine } = serve()
  await postTo(app, COMPLETIONS, { prompt: 'Hi', max_completion_tokens: 9 })
  expect(engine.requests[0]!.maxTokens).toBe(9)
  const both = { prompt: 'Hi', max_completion_tokens: 9, max_tokens: 8 }
  expect((await postTo(app, COMPLETIONS, both)).json().error.param).toBe('max_completion_tokens')
})

test('completions end after 16 tokens by default, and have no chat stops', async () => {
  const { app, engine } = serve()
  await postTo(app, COMPLETIONS, { prompt: 'Hi', logprobs: 3 })
  expect(engine.requests[0]).toMatchObject({
    maxTokens: 16,
    logprobs: 3,
    promptLogprobs: null,
    stop: { strings: [], tokens: [], ignoreEos: false },
  })
})

test('a chat stops where a turn of another role begins', async () => {
  const { app, engine } = serve()
  await postTo(app, CHAT, HELLO)
  expect(engine.requests[0]!.stop.strings).toEqual(['\n\nUser:', '\n\nSystem:'])
})

test('null counts as absent, for every field', async () => {
  const fields = Object.keys({
    ...Object.assign({}, ...HONOURED.map(([wire]) => wire)),
    ...NOT_IMPLEMENTED,
    stream: 0,
    stream_options: 0,
    response_format: 0,
    echo: 0,
    logprobs: 0,
    top_logprobs: 0,
    enable_think: 0,
    max_completion_tokens: 0,
    model: 0,
  })
  const nulls = Object.fromEntries(fields.map((field) => [field, null]))
  for (const [route, body] of ROUTES) {
    const { app, engine } = serve()
    const reply = await postTo(app, route, { ...nulls, ...body })
    expect(reply.statusCode, reply.body).toBe(200)
    expect(engine.requests[0]!.sampling).toEqual(DEFAULTS)
  }
})

test.each(Object.entries(NOT_IMPLEMENTED))('%s is refused by name, except for its off values', async (name, off) => {
  const values = [{ some: 'value' }, 12345]
  for (const [route, body] of ROUTES) {
    const { app, engine } = serve()
    for (const value of values) {
      const reply = await postTo(app, route, { ...body, [name]: value })
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error).toMatchObject({ param: name, code: 'unsupported_parameter' })
    }
    expect(engine.requests).toHaveLength(0)
    for (const value of off) {
      const reply = await postTo(app, route, { ...body, [name]: value })
      expect(reply.statusCode, `${name}: ${JSON.stringify(value)}`).toBe(200)
    }
  }
})

/** Route → a body that it answers, and which fields of READ_BY_SOME it reads. */
const CHATS = ['best_of', 'max_completion_tokens', 'stream_options']
const CONTENTS = { contents: ['Hi'] }
/** Raw prompts contain their own thoughts, so these routes ignore the field, like the original servers. */
const THINK = ['enable_think']
const BOTH = ['messages', 'contents']
const TOOLS = ['tools', 'tool_choice', 'parallel_tool_calls']
const NAMES = ['system_name', 'user_name', 'assistant_name']
const { response_format: _, ...FORMATS } = formatFields()
const FORMAT_FIELDS = Object.keys(FORMATS)
const THINKING_FIELDS = Object.keys(thinkingFields())
const READERS: [string, object, string[]][] = [
  [
    CHAT,
    HELLO,
    [
      ...[...CHATS, ...BOTH, ...THINKING_FIELDS, ...FORMAT_FIELDS, ...TOOLS],
      ...['logprobs', 'top_logprobs', 'prediction'],
    ],
  ],
  [COMPLETIONS, { prompt: 'Hi' }, [...CHATS, ...FORMAT_FIELDS, 'prompt', 'logprobs', 'echo', 'suffix']],
  ['/chat/completions', HELLO, [...CHATS, 'messages', ...NAMES]],
  ['/v1/fim/completions', { prompt: 'a' }, ['prompt', 'best_of', 'stream_options', 'suffix']],
  ['/infill', { input_prefix: 'a' }, ['prompt', 'best_of', 'stream_options']],
  [CHAT, CONTENTS, [...BOTH, ...THINK]],
  ['/v2/chat/completions', CONTENTS, ['contents', ...THINK]],
  ['/v3/chat/completions', CONTENTS, [...BOTH, ...THINK]],
  ['/big_batch/completions', CONTENTS, ['contents', ...THINK]],
  ['/v1/batch/completions', CONTENTS, ['contents', ...THINK]],
  ['/state/chat/completions', { ...CONTENTS, session_id: 's' }, ['contents', ...THINK]],
  ['/multi_state/chat/completions', { ...CONTENTS, session_id: 's' }, ['contents', 'dialogue_idx', ...THINK]],
  ['/FIM/v1/batch-FIM', { prefix: ['a'], suffix: ['b'] }, ['prefix', 'suffix', ...THINK]],
  ['/openai/v1/chat/completions', HELLO, [...BOTH, 'system', 'max_completion_tokens', 'stream_options', ...THINK]],
]

const BOOLEANS = ['logprobs', 'enable_think']

test.each(READERS)('%s %o refuses fields that it does not read', async (route, body, read) => {
  const { app, engine } = serve()
  expect(Object.keys(READ_BY_SOME)).toEqual(expect.arrayContaining(read))
  for (const [name, off] of Object.entries(READ_BY_SOME)) {
    if (read.includes(name)) continue
    const reply = await postTo(app, route, { ...body, [name]: BOOLEANS.includes(name) ? true : 7 })
    expect(reply.statusCode, name).toBe(400)
    expect(reply.body).toContain(`${name}: this route does not read it`)
    for (const value of off) {
      const neutral = await postTo(app, route, { stream: false, ...body, [name]: value })
      expect(neutral.statusCode, `${name} ${neutral.body}`).toBe(200)
    }
  }
  engine.requests.length = 0
  const format = read.includes('guided_json') ? 'yaml' : 'json_object'
  const json = { response_format: { type: format } }
  const refused = await postTo(app, route, { ...body, ...json })
  expect(refused.statusCode).toBe(400)
  expect(refused.body).toContain('response_format')
  expect(engine.requests).toHaveLength(0)
})

test.each(READERS)('%s %o names what it passes over, and takes repeat_last_n', async (route, body) => {
  const { app, engine } = serve()
  const send = (fields: object) => postTo(app, route, { stream: false, ...body, ...fields })
  const passed = await send({ no_such_field: 1, num_ctx: 8, samplers: ['top_k'], repeat_last_n: 64 })
  expect(passed.statusCode, passed.body).toBe(200)
  for (const name of ['no_such_field', 'num_ctx', 'samplers', 'repeat_last_n']) {
    expect(passed.headers.warnings, name).toMatch(new RegExp(`${name} [^.]*was ignored`))
  }
  const penalties = { presence_penalty: 1, frequency_penalty: 1, repetition_penalty: 1.5 }
  const off = await send({ ...penalties, repeat_last_n: 0 })
  expect(off.headers.warnings).toBeUndefined()
  const none = { presencePenalty: 0, frequencyPenalty: 0, repetitionPenalty: 1 }
  expect(engine.requests.at(-1)!.sampling).toMatchObject(none)
  await send({ ...penalties, repeat_last_n: -1 })
  expect(engine.requests.at(-1)!.sampling).toMatchObject({ presencePenalty: 1, repetitionPenalty: 1.5 })
})

test.each([
  [COMPLETIONS, { prompt: 'Hi' }, 'messages'],
  [CHAT, HELLO, 'prompt'],
  ['/v2/chat/completions', CONTENTS, 'messages'],
  ['/state/chat/completions', { ...CONTENTS, session_id: 's' }, 'dialogue_idx'],
  ['/FIM/v1/batch-FIM', { prefix: ['a'], suffix: ['b'] }, 'contents'],
])('%s does not silently drop a prompt', async (route, body, name) => {
  const { app, engine } = serve()
  const value = { ...HELLO, ...CONTENTS, prompt: 'Hi', dialogue_idx: 1 }[name]
  const reply = await postTo(app, route, { ...body, [name]: value })
  expect([reply.statusCode, engine.requests.length]).toEqual([400, 0])
  expect(reply.body).toContain(`${name}: this route does not read it`)
})

test('harmless and unknown fields are ignored', async () => {
  const fields = Object.fromEntries(HARMLESS.map((name) => [name, 'x']))
  for (const [route, body] of ROUTES) {
    const { app } = serve()
    const reply = await postTo(app, route, { ...body, ...fields, my_own_field: [1] })
    expect(reply.statusCode).toBe(200)
  }
})

test.each([
  [{ best_of: 3, n: 2 }, 'best_of', 'unsupported_parameter'],
  [{ response_format: { type: 'yaml' } }, 'response_format', 'invalid_request'],
  [{ stream_options: { include_usage: true } }, 'stream_options', 'invalid_request'],
  [{ alpha_presence: 1, presence_penalty: 2 }, 'alpha_presence', 'invalid_request'],
])('%o is refused', async (fields, param, code) => {
  for (const [route, body] of ROUTES) {
    const { app } = serve()
    const reply = await postTo(app, route, { ...body, ...fields })
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error).toMatchObject({ param, code })
  }
})

const user = (content: unknown) => ({ messages: [{ role: 'user', content }] })

test.each([
  [{ ...HELLO, top_logprobs: 3 }, 'top_logprobs', 'invalid_request'],
  [{ ...HELLO, max_tokens: 1, max_completion_tokens: 2 }, 'max_completion_tokens', 'invalid_request'],
  [{ messages: [{ role: 'function', content: 'x' }] }, 'messages[0].role', 'unsupported_parameter'],
  [{ messages: [{ role: 'pirate', content: 'x' }] }, 'messages[0].role', 'invalid_request'],
  [{ messages: [{ role: 'constructor', content: 'x' }] }, 'messages[0].role', 'invalid_request'],
  [
    { messages: [{ role: 'assistant', tool_calls: [{ id: 'a' }] }] },
    'messages[0].tool_calls[0]',
    'unsupported_parameter',
  ],
  [
    user([
      { type: 'text', text: 'a' },
      { type: 'image_url', image_url: { url: 'http://x' } },
    ]),
    'messages[0].content[1]',
    'unsupported_parameter',
  ],
  [user([{ type: 'text' }]), 'messages[0].content[0].text', 'invalid_request'],
])('chat: %o is refused', async (body, param, code) => {
  const { app, engine } = serve()
  const reply = await postTo(app, CHAT, body)
  expect(reply.statusCode).toBe(400)
  expect(reply.json().error).toMatchObject({ param, code })
  expect(engine.requests).toHaveLength(0)
})

test('roles and content parts arrive in the prompt', async () => {
  const { app, engine } = serve()
  await postTo(app, CHAT, {
    messages: [
      { role: 'system', content: 'S' },
      { role: 'developer', content: 'D' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'assistant', content: null, tool_calls: [] },
      { role: 'user', content: 'c', name: 'ann' },
    ],
  })
  const prompt = Buffer.from(engine.requests[0]!.prompt.map((t) => t - 1)).toString()
  expect(prompt).toBe('System: S\n\nSystem: D\n\nUser: ab\n\nAssistant:\n\nUser: c\n\nAssistant:')
  for (const [message, error] of [
    [{ role: 'user', text: 'a' }, 'messages[0].content: missing'],
    [{ role: 'bot', content: 'a' }, 'expected system, developer, user, assistant or tool'],
  ] as const)
    expect((await postTo(app, CHAT, { messages: [message] })).json().error.message).toContain(error)
})
