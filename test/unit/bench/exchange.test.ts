import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, expect, test } from 'vitest'
import { exchange } from '../../../src/bench/serve/exchange.ts'
import { HttpClient } from '../../../src/bench/serve/http-client.ts'
import { type Answer, type ScriptedServer, scriptedServer, sendEvents, sendJson } from './scripted-server.ts'

let server: ScriptedServer
let client: HttpClient
afterEach(async () => {
  client.dispose()
  await server.close()
})

async function askServer(answer: Answer, { isStream = true, numAnswers = 1, timeoutMs = 10_000 } = {}) {
  server = await scriptedServer(answer)
  client = new HttpClient(server.url, 'key', timeoutMs)
  return await exchange(client, { path: '/ask', body: { a: 1 }, isStream, numAnswers })
}

const piece = (text: string, more = {}) => JSON.stringify({ choices: [{ index: 0, text, ...more }] })

test('a stream: text, times, usage', async () => {
  const result = await askServer(async (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(`data: ${piece('')}\n\n`)
    await delay(20)
    response.write(`data: ${piece('one ')}\n\n`)
    await delay(30)
    response.write(`data: ${piece('two')}\n\n`)
    await delay(20)
    response.write(`data: ${piece('', { finish_reason: 'stop' })}\n\n`)
    const usage = { prompt_tokens: 3, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 1 } }
    response.end(`data: ${JSON.stringify({ choices: [], usage })}\n\ndata: [DONE]\n\n`)
  })
  expect(server.received).toMatchObject([{ method: 'POST', path: '/ask', body: { a: 1 }, authorization: 'Bearer key' }])
  const { answers, usage, failure, endMs } = result
  expect({ usage, failure }).toEqual({ usage: { inputTokens: 3, cachedTokens: 1, outputTokens: 2 }, failure: null })
  const [{ text, pieces, firstMs, lastMs, gapsMs }] = answers as [(typeof answers)[0]]
  expect({ text, pieces }).toEqual({ text: 'one two', pieces: 2 })
  // The piece without text is not the first token. Timers may be a millisecond early.
  expect(firstMs).toBeGreaterThan(18)
  expect(gapsMs).toHaveLength(1)
  expect(gapsMs[0]).toBeGreaterThan(28)
  expect(lastMs).toBe(firstMs! + gapsMs[0]!)
  expect(endMs).toBeGreaterThan(lastMs! + 18)
})

test.each([
  ['a list as the mark of the end', [piece('a'), '["[DONE]"]']],
  ['no mark, but a reason', [piece('a', { finish_reason: 'length' })]],
  ['chat', [JSON.stringify({ choices: [{ delta: { content: 'a' } }] }), '[DONE]']],
  ['thoughts', [JSON.stringify({ choices: [{ delta: { reasoning_content: 'a' } }] }), '[DONE]']],
])('a stream with %s', async (_, events) => {
  const { failure, answers } = await askServer((response) => sendEvents(response, events))
  expect(failure).toBeNull()
  expect(answers[0]).toMatchObject({ text: 'a', pieces: 1 })
})

test('a stream of several answers, each with its own times', async () => {
  const both = [0, 1].map((index) => ({ index, delta: { content: `${index}` } }))
  const events = [{ choices: both }, { choices: [both[1]] }, { choices: [both[1]] }]
  const { answers, failure } = await askServer(
    (response) => sendEvents(response, [...events.map((one) => JSON.stringify(one)), '[DONE]']),
    { numAnswers: 2 },
  )
  expect(failure).toBeNull()
  expect(answers.map(({ text }) => text)).toEqual(['0', '111'])
  expect(answers.map(({ gapsMs }) => gapsMs.length)).toEqual([0, 2])
})

test.each([
  ['completions', { choices: [{ text: 'a' }] }],
  ['chat', { choices: [{ message: { content: 'a' } }] }],
])('a reply of %s without streaming has text and no times', async (_, body) => {
  const { answers, failure } = await askServer((response) => sendJson(response, body), { isStream: false })
  expect(failure).toBeNull()
  expect(answers[0]).toMatchObject({ text: 'a', pieces: 0, firstMs: null, lastMs: null })
})

test('a whole reply is accepted although a stream was requested', async () => {
  const { answers, failure } = await askServer((response) => sendJson(response, { choices: [{ text: 'a' }] }))
  expect(failure).toBeNull()
  expect(answers[0]!.text).toBe('a')
})

test('a whole reply that claims to be a stream is accepted', async () => {
  const { answers, failure } = await askServer(
    (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).end(piece('a'))
    },
    { isStream: false },
  )
  expect(failure).toBeNull()
  expect(answers[0]!.text).toBe('a')
})

const FAILURES: [string, string, string, Answer, { isStream?: boolean; numAnswers?: number }?][] = [
  [
    'a status of its own',
    'http 429',
    'the line is full',
    (response) => sendJson(response, { error: { message: 'the line is full' } }, 429),
  ],
  ["FastAPI's detail", 'http 422', 'no', (response) => sendJson(response, { detail: 'no' }, 422)],
  [
    'a page of a proxy',
    'http 502',
    '<html>bad gateway',
    (response) => void response.writeHead(502).end('<html>bad gateway'),
  ],
  ['null as a body', 'http 500', 'null', (response) => sendJson(response, null, 500)],
  [
    'an error event',
    'error in reply',
    'the worker died',
    (response) => sendEvents(response, [piece('a'), JSON.stringify({ error: { message: 'the worker died' } })]),
  ],
  [
    'an error within a 200',
    'error in reply',
    'too late',
    (response) => sendJson(response, { error: 'too late' }),
    { isStream: false },
  ],
  ['a stream that ends early', 'cut stream', 'before its last event', (response) => sendEvents(response, [piece('a')])],
  [
    'an event that is no JSON',
    'bad reply',
    'no JSON object: {oops',
    (response) => sendEvents(response, ['{oops', '[DONE]']),
  ],
  [
    'an answer nobody asked for',
    'bad reply',
    'answer 3, where 1 were asked',
    (response) => sendEvents(response, [JSON.stringify({ choices: [{ index: 3, text: 'a' }] })]),
  ],
  [
    'too few answers',
    'bad reply',
    '1 of 2 answers',
    (response) => sendJson(response, { choices: [{ index: 0, text: 'a' }] }),
    { isStream: false, numAnswers: 2 },
  ],
  ['a connection that breaks before the reply', 'connection', 'hang up', (response) => void response.socket?.destroy()],
  [
    'a connection that breaks within the reply',
    'connection',
    'closed within the reply',
    (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(`data: ${piece('a')}\n\n`, () => response.socket?.destroy())
    },
  ],
]

test.each(FAILURES)('%s is a failure: %s', async (_, reason, message, answer, options) => {
  const { failure } = await askServer(answer, options)
  expect(failure).toMatchObject({ reason, message: expect.stringContaining(message) })
})

test.each<[string, Answer]>([
  ['begin', () => {}],
  [
    'end',
    (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(`data: ${piece('a')}\n\n`)
    },
  ],
])('a reply that does not %s in time is a failure', async (_, answer) => {
  const { failure, endMs } = await askServer(answer, { timeoutMs: 50 })
  expect(failure?.reason).toBe('timeout')
  expect(endMs).toBeLessThan(5000)
})

test('a connection is reused', async () => {
  await askServer((response) => sendEvents(response, ['[DONE]']))
  const ask = { path: '/again', body: {}, isStream: true, numAnswers: 1 }
  for (let i = 0; i < 3; i++) expect((await exchange(client, ask)).failure).toBeNull()
  expect(new Set(server.received.map(({ port }) => port)).size).toBe(1)
})
