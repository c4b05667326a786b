import { afterEach, expect, test } from 'vitest'
import { benchServe, type ServeBenchPlan } from '../../../src/bench/serve/bench.ts'
import { type Answer, type ScriptedServer, scriptedServer, sendEvents, sendJson } from './scripted-server.ts'

let server: ScriptedServer
afterEach(() => server.close())

const PLAN: Omit<ServeBenchPlan, 'url'> = {
  apiKey: undefined,
  endpoint: 'completions',
  model: 'some',
  settings: { isStream: true, ignoreEos: false, temperature: 0, extra: {} },
  dataset: { kind: 'random', lengths: { inputTokens: 5, outputTokens: 3, rangeRatio: 1 } },
  numPrompts: 6,
  batch: 1,
  requestRate: Number.POSITIVE_INFINITY,
  concurrency: 2,
  timeoutMs: 5000,
  seed: 1,
  onProgress: () => {},
  signal: new AbortController().signal,
}

async function bench(answer: Answer, more: Partial<ServeBenchPlan> = {}) {
  server = await scriptedServer(answer)
  return await benchServe({ ...PLAN, url: server.url, ...more })
}

/** Three pieces of text for each prompt. */
const answering: Answer = (response, { path, body }) => {
  if (path === '/tokenize') return sendJson(response, { count: String(body!.prompt).length })
  if (path === '/v1/models') return sendJson(response, { data: [{ id: 'first' }, { id: 'second' }] })
  const rows = Array.isArray(body!.contents) ? body!.contents : [body!.prompt]
  const event = { choices: rows.map((_, index) => ({ index, text: 'x', delta: null })) }
  sendEvents(response, [...new Array(3).fill(JSON.stringify(event)), '[DONE]'])
}

const asked = () => server.received.filter(({ path }) => /completions$/.test(path))

test('sends one warm-up request, then the number asked for, each with a prompt of its own', async () => {
  const progress: number[] = []
  const { summary, numPlanned } = await bench(answering, {
    onProgress: (numEnded, numRequests) => progress.push(numEnded / numRequests),
  })
  expect(numPlanned).toBe(6)
  expect(summary).toMatchObject({ numRequests: 6, numSucceeded: 6 })
  expect(progress).toEqual([1, 2, 3, 4, 5, 6].map((count) => count / 6))
  expect(asked()).toHaveLength(7)
  expect(new Set(asked().map(({ body }) => body!.prompt)).size).toBe(7)
})

test('the body of a completion', async () => {
  const settings = { ...PLAN.settings, ignoreEos: true, extra: { top_p: 0.5, temperature: 1 } }
  await bench(answering, { settings, numPrompts: 1 })
  expect(asked()[0]).toMatchObject({
    path: '/v1/completions',
    body: {
      model: 'some',
      prompt: expect.any(String),
      max_tokens: 3,
      temperature: 1,
      stream: true,
      stream_options: { include_usage: true },
      ignore_eos: true,
      top_p: 0.5,
    },
  })
})

test('a chat without streaming', async () => {
  const settings = { ...PLAN.settings, isStream: false }
  const whole: Answer = (response) => sendJson(response, { choices: [{ message: { content: 'x' } }] })
  await bench(whole, { endpoint: 'chat', settings, numPrompts: 1 })
  expect(asked()[0]!.path).toBe('/v1/chat/completions')
  expect(asked()[0]!.body).toEqual({
    model: 'some',
    messages: [{ role: 'user', content: expect.any(String) }],
    max_tokens: 3,
    temperature: 0,
    stream: false,
  })
})

test.each([
  ['lightning', '/v1/chat/completions'],
  ['lightning-big', '/big_batch/completions'],
] as const)('%s sends batches, and counts tokens by events', async (endpoint, path) => {
  const more = { endpoint, model: undefined, apiKey: 'key', batch: 4 }
  const { summary, outputTokensFrom, numPlanned } = await bench(answering, more)
  expect(asked().map(({ body }) => (body!.contents as unknown[]).length)).toEqual([4, 4, 2])
  expect(asked()[0]).toMatchObject({ path, body: { password: 'key', chunk_size: 1, max_tokens: 3 } })
  expect(asked()[0]!.body).not.toHaveProperty('model')
  expect(numPlanned).toBe(2)
  expect(outputTokensFrom).toEqual(['events'])
  expect(summary.outputTokens.total).toBe(6 * 3)
  // The scripted /tokenize counts characters.
  const sent = asked()
    .slice(1)
    .flatMap(({ body }) => body!.contents as string[])
  expect(summary.inputTokens.total).toBe(sent.join('').length)
})

test('the model is the first that the server names', async () => {
  const { model } = await bench(answering, { model: undefined, numPrompts: 1 })
  expect(model).toBe('first')
  expect(asked()[0]!.body!.model).toBe('first')
})

test.each<[string, Answer, string]>([
  ['no model', (response) => sendJson(response, [], 404), 'names no model (it answered 404); say which with --model'],
  ['a key', (response) => sendJson(response, { error: { message: 'no' } }, 401), 'the server requires a key'],
])('a server that requires %s is supported', async (_, answer, message) => {
  await expect(bench(answer, { model: undefined })).rejects.toThrow(message)
})

test('a failed warm-up request ends the run before the load', async () => {
  const failing: Answer = (response) => sendJson(response, { error: 'unknown model "some"' }, 404)
  await expect(bench(failing)).rejects.toThrow(
    'the request sent ahead of the load failed (http 404): unknown model "some"',
  )
  expect(asked()).toHaveLength(1)
})

test('no server', async () => {
  await bench(answering, { numPrompts: 1 })
  const url = 'http://127.0.0.1:1'
  await expect(benchServe({ ...PLAN, url })).rejects.toThrow(`no server answers at ${url}`)
})

test('failures within the load are counted, and the other requests continue', async () => {
  let count = 0
  const { summary } = await bench((response, received) => {
    const isAsked = /completions$/.test(received.path)
    if (isAsked && count++ % 2 === 1) return sendJson(response, { error: 'overloaded' }, 503)
    answering(response, received)
  })
  expect(summary).toMatchObject({ numSucceeded: 3, numFailed: 3 })
  expect(summary.failures).toEqual([{ reason: 'http 503', count: 3, example: 'overloaded' }])
})

test('an interrupted load ends at once and reports what it has', async () => {
  const abort = new AbortController()
  let count = 0
  const { summary, numPlanned } = await bench(
    (response, received) => {
      if (!/completions$/.test(received.path) || count++ < 3) return answering(response, received)
      abort.abort()
    },
    { signal: abort.signal, concurrency: 1 },
  )
  expect(numPlanned).toBe(6)
  expect(summary).toMatchObject({ numRequests: 3, numSucceeded: 2 })
  expect(summary.failures).toMatchObject([{ reason: 'interrupted', count: 1 }])
})
