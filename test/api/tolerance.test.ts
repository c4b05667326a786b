/** Neutral or misspelt fields of clients: accepted, answered with a warning, or refused by name. */
import { describe, expect, test } from 'vitest'
import { promptOf } from '../helpers/fake-engine.ts'
import { CHAT, COMPLETIONS, HELLO, postTo, serve } from './kit.ts'

const ROUTES = [
  [CHAT, HELLO],
  [COMPLETIONS, { prompt: 'Hi' }],
] as const

async function send(route: string, body: object) {
  const { app, engine } = serve()
  return { reply: await postTo(app, route, body), engine }
}

describe.each(ROUTES)('%s', (route, body) => {
  test.each([
    ['no limit, as local servers say it', { max_tokens: -1 }],
    ['a sampler that is off, with its numbers', { mirostat: 0, mirostat_tau: 5, mirostat_eta: 0.1 }],
    [
      'SillyTavern’s other samplers that are off',
      {
        dry_multiplier: 0,
        dry_base: 1.75,
        dry_allowed_length: 2,
        xtc_probability: 0,
        xtc_threshold: 0.1,
        dynatemp_range: 0,
        dynatemp_exponent: 1,
        typical_p: 1,
        tfs_z: 1,
        top_a: 0,
      },
    ],
    ['more stops than OpenAI allows', { stop: Array.from({ length: 64 }, (_, i) => `stop ${i}`) }],
    ['where llama.cpp keeps a prompt', { cache_prompt: true, id_slot: 0 }],
  ])('accepts %s', async (_what, fields) => {
    const { reply } = await send(route, { ...body, ...fields })
    expect(reply.statusCode, reply.body).toBe(200)
    expect(reply.headers.warnings).toBeUndefined()
  })

  test('max_tokens −1 means the limit of a chat', async () => {
    const { engine } = await send(route, { ...body, max_tokens: -1 })
    expect(engine.requests[0]!.maxTokens).toBe(4096)
    for (const max_tokens of [-2, 70_000]) {
      expect((await send(route, { ...body, max_tokens })).reply.json().error.param).toBe('max_tokens')
    }
  })

  test.each([
    [{ temprature: 0.5 }, 'temprature is no field of this route and was ignored; did you mean temperature?'],
    [{ maxTokens: 5 }, 'maxTokens is no field of this route and was ignored; did you mean max_tokens?'],
    [{ num_ctx: 4096 }, 'num_ctx was ignored: a recurrent model has no window'],
    [{ repeat_last_n: 64 }, 'repeat_last_n was ignored: penalties count the whole text'],
    [
      { samplers: ['top_k'] },
      'samplers was ignored: their order is fixed: penalties, temperature, top_k and top_p, min_p',
    ],
    [{ no_such_field: 1 }, 'no_such_field is no field of this route and was ignored'],
    [{ 'näme\r\nx: y': 1 }, 'n?me??x: y is no field of this route and was ignored'],
  ])('%j is answered with a warning', async (fields, warning) => {
    const { reply } = await send(route, { ...body, ...fields })
    expect(reply.statusCode, reply.body).toBe(200)
    expect(reply.headers.warnings).toBe(warning)
    const streamed = await send(route, { ...body, ...fields, stream: true })
    expect(streamed.reply.headers.warnings).toBe(warning)
  })

  test.each([
    [{ mirostat: 2 }, 'mirostat'],
    [{ dry_multiplier: 0.8 }, 'dry_multiplier'],
  ])('%j is refused', async (fields, param) => {
    const { reply } = await send(route, { ...body, ...fields })
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error.param).toBe(param)
  })
})

test('the speaker names of RWKV-Runner select that chat template', async () => {
  const names = { user_name: 'Bob', assistant_name: 'Alice' }
  const { reply, engine } = await send(CHAT, { ...HELLO, ...names })
  expect(reply.statusCode, reply.body).toBe(200)
  const prompt = promptOf(engine.requests[0]!)
  expect(prompt).toBe('Bob: Hi\n\nAlice:')
  // Giving them their normal names changes nothing.
  const plain = await send(CHAT, { ...HELLO, user_name: 'User', assistant_name: 'Assistant' })
  expect(plain.engine.requests[0]!.sampling.temperature).toBe(1)
  expect(plain.engine.requests[0]!.sampling.topP).toBe(1)
})

test('unsupported features of OpenAI are refused with a message', async () => {
  for (const what of ['moderations']) {
    const { reply } = await send(`/v1/${what}`, { input: 'Hi' })
    expect(reply.statusCode).toBe(404)
    expect(reply.json().error.message).toMatch(/^this server has no /)
  }
})

test('the error for an unknown model lists the names that exist', async () => {
  const { reply } = await send(CHAT, { ...HELLO, model: 'duck' })
  expect(reply.json().error).toMatchObject({ code: 'model_not_found', param: 'model' })
})

describe('origins', () => {
  const from = async (origin: string, host = '127.0.0.1') => {
    const { app } = serve(undefined, { host, keys: host === '127.0.0.1' ? [] : ['k'] })
    const headers = { origin, authorization: 'Bearer k' }
    return (await app.inject({ url: '/v1/models', headers })).statusCode
  }
  test('programs with pages of their own are allowed on loopback; websites are not', async () => {
    for (const origin of ['app://obsidian.md', 'tauri://localhost', 'vscode-webview://1a2b', 'file://']) {
      expect(await from(origin), origin).toBe(200)
      expect(await from(origin, '0.0.0.0'), origin).toBe(403)
    }
    for (const origin of ['https://a.b', 'null', 'https://app://', 'chrome-extension://abc']) {
      expect(await from(origin), origin).toBe(403)
    }
  })
})
