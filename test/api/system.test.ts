import { Ajv2020 } from 'ajv/dist/2020.js'
import type { RouteOptions } from 'fastify'
import { describe, expect, test } from 'vitest'
import type { ModelRegistry } from '../../src/api/models.ts'
import { SkeinError } from '../../src/errors.ts'
import { buildApp } from '../../src/gateway/app.ts'
import { Drain } from '../../src/gateway/http/drain.ts'
import { shutDown } from '../../src/gateway/http/shutdown.ts'
import { createRegistry, type EngineSource } from '../../src/gateway/routing/registry.ts'
import { answer, byteCodec, endless, FakeEngineClient, localSource } from '../helpers/fake-engine.ts'
import { hosted, managementOf } from './hosted.ts'
import { CHAT, COMPLETIONS, eventsOf, HELLO, postTo, serve, serveAlone } from './kit.ts'

const source = (state: EngineSource['state'], reason: string): EngineSource => ({ state, reason, client: null })

function appOf(models: ModelRegistry) {
  return buildApp({ models, keys: [], host: '127.0.0.1', version: '1' })
}

describe('readiness', () => {
  const loading = createRegistry([{ id: 'a', tokenizer: byteCodec, source: source('loading', 'loading, 37 %') }])

  test('while a model loads, readiness and requests are 503 with the reason', async () => {
    const app = appOf(loading)
    for (const path of ['/readyz', '/health']) {
      const reply = await app.inject({ url: path })
      expect(reply.statusCode).toBe(503)
      expect(reply.json()).toMatchObject({ status: 'unavailable', reason: 'a: loading, 37 %' })
    }
    expect((await app.inject({ url: '/livez' })).statusCode).toBe(200)
    expect((await app.inject({ url: '/v1/models' })).json().data[0]).toMatchObject({ id: 'a', state: 'loading' })
    const reply = await postTo(app, CHAT, HELLO)
    expect(reply.statusCode).toBe(503)
    expect(reply.headers['retry-after']).toBe('2')
    expect(reply.json().error.code).toBe('model_not_loaded')
  })

  test('one ready model among several is enough; requests must then name it', async () => {
    const models = createRegistry([
      { id: 'a', tokenizer: byteCodec, source: source('failed', 'no such file') },
      { id: 'b', tokenizer: byteCodec, source: localSource(new FakeEngineClient()) },
    ])
    const app = appOf(models)
    const ready = await app.inject({ url: '/readyz' })
    expect(ready.statusCode).toBe(200)
    expect(ready.json()).toMatchObject({ status: 'degraded', reason: 'a: no such file' })
    expect((await postTo(app, CHAT, { ...HELLO, model: 'b' })).statusCode).toBe(200)
    expect((await postTo(app, CHAT, { ...HELLO, model: 'a' })).statusCode).toBe(503)
    expect((await postTo(app, CHAT, { ...HELLO, model: 'c' })).statusCode).toBe(404)
    expect((await postTo(app, CHAT, HELLO)).json().error).toMatchObject({ param: 'model', code: 'invalid_request' })
    expect((await appOf(createRegistry([])).inject({ url: '/readyz' })).json().reason).toBe('no model is loaded')
  })
})

test('models report their limits', async () => {
  const { app } = serve()
  expect((await app.inject({ url: '/v1/models/goose' })).json()).toMatchInlineSnapshot(`
    {
      "architecture": "rwkv7",
      "created": 1700000000,
      "created_at": "2023-11-14T22:13:20.000Z",
      "display_name": "goose",
      "embeddings": null,
      "id": "goose",
      "limits": {
        "answer_logprobs": 1048576,
        "batch_requests": 50000,
        "embedding_inputs": 2048,
        "file_bytes": 67108864,
        "logit_bias": 1024,
        "max_prompt_tokens": 5000,
        "max_tokens": 65536,
        "messages": 4096,
        "n": 16,
        "prompt_logprobs": 131072,
        "prompts": 512,
        "sequences": 1024,
        "stop_bytes": 256,
        "stops": 64,
        "top_logprobs": 20,
      },
      "max_model_len": 5000,
      "num_parameters": 1000,
      "num_slots": 16,
      "object": "model",
      "owned_by": "skein",
      "state": "ready",
      "type": "model",
      "vocab_size": 257,
      "weight_type": "f32",
    }
  `)
  for (const none of ['duck', '']) expect((await app.inject({ url: `/v1/models/${none}` })).statusCode).toBe(404)
})

test('tokenize and detokenize', async () => {
  const { app } = serve()
  const tokenize = async (body: object) => (await postTo(app, '/tokenize', body)).json()
  expect(await tokenize({ prompt: 'ab' })).toEqual({ count: 2, max_model_len: 5000, tokens: [98, 99] })
  expect((await tokenize({ content: 'ab' })).tokens).toEqual([98, 99])
  expect((await tokenize({ prompt: '' })).tokens).toEqual([])
  const pieces = (await tokenize({ content: 'a\u{e9}', with_pieces: true })).tokens
  expect(pieces).toEqual([
    { id: 98, piece: 'a' },
    { id: 0xc3 + 1, piece: [0xc3] },
    { id: 0xa9 + 1, piece: [0xa9] },
  ])
  const { headers } = await postTo(app, '/tokenize', { content: 'a', add_special: true, with_peices: true })
  expect(headers.warnings).toMatch(/^with_peices .* did you mean with_pieces\?$/)
  const { tokens } = await tokenize({ messages: HELLO.messages, enable_think: true })
  expect((await postTo(app, '/detokenize', { tokens })).json()).toEqual({
    prompt: 'User: Hi\n\nAssistant: <think',
    content: 'User: Hi\n\nAssistant: <think',
  })
  expect((await tokenize({ content: 'a'.repeat(4097), with_pieces: true })).error.message).toContain('at most 4096')
  expect((await tokenize({})).error.param).toBe('prompt')
  expect((await tokenize({ prompt: 'a', content: 'b' })).error.param).toBe('prompt')
  expect((await postTo(app, '/detokenize', { tokens: [257] })).json().error.param).toBe('tokens')
  expect((await postTo(app, '/detokenize', { tokens: [] })).json()).toEqual({ prompt: '', content: '' })
})

test('metrics count requests and tokens', async () => {
  const { app } = serveAlone()
  await postTo(app, CHAT, { ...HELLO, n: 2 })
  await postTo(app, COMPLETIONS, { prompt: 'abc' })
  await postTo(app, CHAT, { ...HELLO, temperature: -1 })
  const { body, headers } = await app.inject({ url: '/metrics' })
  expect(headers['content-type']).toContain('text/plain')
  const value = (line: string) =>
    body
      .split('\n')
      .find((l) => l.startsWith(`${line} `))
      ?.split(' ')[1]
  expect(value('skein_prompt_tokens_total{model="goose"}')).toBe('23')
  expect(value('skein_generation_tokens_total{model="goose"}')).toBe('42')
  expect(value('skein_request_success_total{model="goose",finished_reason="stop"}')).toBe('3')
  expect(value('skein_request_errors_total{code="invalid_request"}')).toBe('1')
  expect(value('skein_time_to_first_token_seconds_count{model="goose"}')).toBe('2')
  expect(value('skein_inter_token_latency_seconds_count{model="goose"}')).toBe('36')
  expect(value('skein_e2e_request_latency_seconds_count{model="goose"}')).toBe('2')
  expect(value('skein_num_requests_running{model="goose"}')).toBe('2')
  expect(value('skein_num_requests_waiting{model="goose"}')).toBe('3')
  expect(value('skein_num_slots{model="goose"}')).toBe('16')
  expect(body).toContain('nodejs_eventloop_lag_seconds')
})

test('a batch prompt that waits for room is no failed answer', async () => {
  let numRefused = 0
  const { app } = serveAlone(async function* (request) {
    const isSecond = request.prompt[0] === 'y'.charCodeAt(0) + 1
    // The call may not have started yet, so it is repeated until there is room.
    if (isSecond) await new Promise((resolve) => setTimeout(resolve, 2))
    if (isSecond && numRefused++ < 2) throw new SkeinError('queue_full', 'full')
    yield* answer(request, 'ok')
  })
  expect((await postTo(app, COMPLETIONS, { prompt: ['x', 'y'] })).statusCode).toBe(200)
  expect(numRefused).toBe(3)
  const { body } = await app.inject({ url: '/metrics' })
  expect(body).toMatch(/request_success_total\{.*finished_reason="stop".*\} 2/)
  expect(body).not.toMatch(/generation_errors_total\{/)
})

test('metrics of two apps are separate', async () => {
  const first = serve()
  await postTo(first.app, CHAT, HELLO)
  const second = serveAlone()
  expect((await second.app.inject({ url: '/metrics' })).body).not.toContain('skein_request_success_total{')
})

const PAGES = ['/', '/docs', '/docs/', '/docs/*', '/browser', '/browser/*', '/sw.js', '/favicon.ico', '/assets/*']

test('the OpenAPI page describes the served routes with schemas that validate', async () => {
  const served: string[] = []
  const onRoute = ({ method, url }: RouteOptions) => {
    const path = url.replace('proxy/*', 'proxy/{path}').replace(/:(\w+)/g, '{$1}')
    // The gateway of one worker accepts any method; the OpenAPI page has one.
    const methods = [method].flat().filter((each) => each !== 'HEAD')
    if (!PAGES.includes(url)) served.push(...methods.slice(0, 1).map((each) => `${each} ${path}`))
  }
  const { fleet } = hosted()
  const management = managementOf(fleet, () => {
    throw new Error('nothing is started')
  })
  const { app } = serve(undefined, { onRoute, management })
  const page = (await app.inject({ url: '/openapi.json' })).json()
  expect(page.openapi).toBe('3.1.0')
  const described = Object.entries(page.paths).flatMap(([path, methods]) =>
    Object.keys(methods as object).map((method) => `${method.toUpperCase()} ${path}`),
  )
  expect(described.sort()).toEqual(served.sort())
  const { get: exported } = page.paths['/v1/sessions/{id}/export']
  const { post: imported } = page.paths['/v1/sessions/{id}/import']
  expect(Object.keys(exported.responses[200].content)).toEqual(['application/octet-stream'])
  expect(Object.keys(imported.requestBody.content)).toEqual(['application/octet-stream'])
  expect(page.paths['/v1/chat/completions'].post.tags).toEqual(['openai', 'rwkv_lightning', 'rwkv_infer'])
  const operations = Object.values(page.paths).flatMap((path) => Object.values(path as object))
  const ids = operations.map(({ operationId }) => operationId)
  expect(new Set(ids).size).toBe(ids.length)
  const ajv = new Ajv2020({ allowUnionTypes: true })
  const { schema } = page.paths['/v1/chat/completions'].post.requestBody.content['application/json']
  const validate = ajv.compile(schema)
  expect(validate({ ...HELLO, n: 16, stop: null })).toBe(true)
  expect(validate({ ...HELLO, n: 17 })).toBe(false)
  for (const { requestBody } of operations) {
    const body = requestBody?.content['application/json']
    if (body !== undefined) ajv.compile(body.schema)
  }
})

test('version', async () => {
  expect((await serve().app.inject({ url: '/version' })).json()).toEqual({ version: '1.2.3' })
})

describe('shutdown', () => {
  test('refuses new work, lets streams finish, then closes', async () => {
    const drain = new Drain()
    let finish = () => {}
    const { app } = serve(
      async function* (request) {
        yield { type: 'prompt', id: request.id, logprobs: null }
        await new Promise<void>((resolve) => {
          finish = resolve
        })
        yield {
          type: 'finish',
          id: request.id,
          index: 0,
          reason: 'stop',
          matched: 0,
          completionTokens: 1,
        }
      },
      { drain },
    )
    const running = postTo(app, CHAT, { ...HELLO, stream: true })
    await expect.poll(() => drain.numActive).toBe(1)
    let stopped = false
    const down = shutDown({
      app,
      drain,
      timeoutMs: 5000,
      stopWorkers: async () => {
        stopped = true
      },
    })
    const refused = await postTo(app, CHAT, HELLO)
    expect(refused.statusCode).toBe(503)
    expect((await app.inject({ url: '/readyz' })).json().reason).toBe('the server is shutting down')
    expect(stopped).toBe(false)
    finish()
    expect(eventsOf((await running).body).at(-1)).toBe('[DONE]')
    await down
    expect(stopped).toBe(true)
  })

  test('cancels the rest after the limit, and does not blame the client', async () => {
    const drain = new Drain()
    const { app, engine } = serve(endless, { drain })
    const streamed = postTo(app, CHAT, { ...HELLO, stream: true })
    const whole = postTo(app, CHAT, HELLO)
    await expect.poll(() => drain.numActive).toBe(2)
    await shutDown({ app, drain, timeoutMs: 50, stopWorkers: async () => {} })
    expect(engine.cancelled).toHaveLength(2)
    const error = { code: 'model_not_loaded', message: 'the server is shutting down; retry later or on another server' }
    expect(eventsOf((await streamed).body).at(-1)).toMatchObject({ error })
    const reply = await whole
    expect(reply.statusCode).toBe(503)
    expect(reply.headers['retry-after']).toBeDefined()
    expect(reply.json()).toMatchObject({ error })
  })
})
