/** The contract: the official client, unmodified, with a listening gateway. */
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { answer, endless, promptOf } from '../helpers/fake-engine.ts'
import { serve } from './kit.ts'
import { openAiOf } from './openai.ts'

const KEY = 'sk-right'
/** The prompt selects what the fake engine does. */
const { app, engine } = serve(
  (request, signal) => {
    const text = promptOf(request)
    if (text.includes('ENDLESS')) return endless(request, signal)
    if (text.includes('FULL')) return fail(request, 'queue_full')
    if (text.includes('BREAK')) return fail(request, 'kernel_failed')
    if (text.includes('MID')) {
      return [...[...answer(request, 'ab')].slice(0, 3), ...fail(request, 'kernel_failed')]
    }
    return answer(request, (i) => ` Hallo ${i}, 世界 👋`, 'length')
  },
  { keys: [KEY] },
)

function fail(request: GenerateRequest, code: 'queue_full' | 'kernel_failed') {
  return [{ type: 'error', id: request.id, error: { code, message: code } }] as const
}

let client: OpenAI
beforeAll(async () => {
  client = await openAiOf(app, KEY)
})
afterAll(() => app.close())

const chat = (content: string) => ({ model: 'goose', messages: [{ role: 'user' as const, content }] })
const TEXT = 'Hallo 0, 世界 👋'

test('models', async () => {
  const list = await client.models.list()
  expect(list.data.map(({ id }) => id)).toEqual(['goose'])
  expect((await client.models.retrieve('goose')).owned_by).toBe('skein')
  await expect(client.models.retrieve('duck')).rejects.toBeInstanceOf(OpenAI.NotFoundError)
})

test('chat without streaming', async () => {
  const reply = await client.chat.completions.create({ ...chat('Hi'), n: 2 })
  expect(reply.choices.map(({ message }) => message.content)).toEqual([TEXT, 'Hallo 1, 世界 👋'])
  expect(reply.choices[0]!.finish_reason).toBe('length')
  expect(reply.usage!.total_tokens).toBe(reply.usage!.prompt_tokens + reply.usage!.completion_tokens)
})

test('chat, streamed by hand and with the helper', async () => {
  const stream = await client.chat.completions.create({
    ...chat('Hi'),
    stream: true,
    stream_options: { include_usage: true },
  })
  let text = ''
  let usage: OpenAI.CompletionUsage | null | undefined
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    usage = chunk.usage
  }
  expect(text).toBe(TEXT)
  expect(usage).toMatchObject({ prompt_tokens: 20 })

  const helper = client.chat.completions.stream({ ...chat('Hi'), logprobs: true, top_logprobs: 2 })
  const final = await helper.finalChatCompletion()
  expect(final.choices[0]!.message.content).toBe(TEXT)
  expect(final.choices[0]!.logprobs!.content![0]).toMatchObject({ token: ' ', bytes: [32] })
})

test('completions, whole and streamed', async () => {
  const body = { model: 'goose', prompt: ['a', 'b'], logprobs: 2, max_tokens: 4 }
  const reply = await client.completions.create(body)
  expect(reply.choices.map(({ text }) => text)).toEqual([` ${TEXT}`, ` ${TEXT}`])
  expect(reply.choices[0]!.logprobs!.tokens!.slice(0, 2)).toEqual([' ', 'H'])
  const texts = ['', '']
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    for (const { index, text } of chunk.choices) texts[index] += text
  }
  expect(texts).toEqual([` ${TEXT}`, ` ${TEXT}`])
})

test('abort cancels the request in the engine', async () => {
  const stream = await client.chat.completions.create({ ...chat('ENDLESS'), stream: true })
  const before = engine.cancelled.length
  let chunks = 0
  for await (const _ of stream) if (++chunks === 5) stream.controller.abort()
  await expect.poll(() => engine.cancelled.length).toBe(before + 1)

  const controller = new AbortController()
  const waiting = client.chat.completions.create(chat('ENDLESS'), { signal: controller.signal })
  const started = engine.requests.length
  await expect.poll(() => engine.requests.length).toBe(started + 1)
  controller.abort()
  await expect(waiting).rejects.toBeInstanceOf(OpenAI.APIUserAbortError)
  await expect.poll(() => engine.cancelled.length).toBe(before + 2)
})

test('errors have their classes', async () => {
  const create = (content: string, extra: object = {}) =>
    client.chat.completions.create({ ...chat(content), ...extra, stream: false })
  const wrong = client.withOptions({ apiKey: 'sk-wrong' })
  await expect(wrong.models.list()).rejects.toBeInstanceOf(OpenAI.AuthenticationError)
  await expect(create('Hi', { model: 'duck' })).rejects.toBeInstanceOf(OpenAI.NotFoundError)
  await expect(create('FULL')).rejects.toBeInstanceOf(OpenAI.RateLimitError)
  await expect(create('BREAK')).rejects.toBeInstanceOf(OpenAI.InternalServerError)
  const bad = create('Hi', { temperature: -1 })
  await expect(bad).rejects.toBeInstanceOf(OpenAI.BadRequestError)
  await expect(bad).rejects.toMatchObject({ status: 400, param: 'temperature', code: 'invalid_request' })
})

test('an error within a stream is raised by the iterator', async () => {
  const stream = await client.chat.completions.create({ ...chat('MID'), stream: true })
  const read = async () => {
    let text = ''
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? ''
    return text
  }
  await expect(read()).rejects.toMatchObject({ code: 'kernel_failed' })
})
