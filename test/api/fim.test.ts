import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { answer, byteCodec } from '../helpers/fake-engine.ts'
import { COMPLETIONS, eventsOf, postTo, serve, steady } from './kit.ts'

const promptOf = ({ prompt }: GenerateRequest) => byteCodec.decode(prompt)
const PROMPT = '✿prefix✿✿suffix✿ end✿middle✿begin '

test('on every route the suffix comes first, and the text before the gap is continued', async () => {
  const { app, engine } = serve()
  await postTo(app, '/FIM/v1/batch-FIM', { prefix: ['begin '], suffix: [' end'] })
  await postTo(app, COMPLETIONS, { prompt: 'begin ', suffix: ' end' })
  await postTo(app, '/v1/fim/completions', { prompt: 'begin ', suffix: ' end' })
  await postTo(app, '/infill', { input_prefix: 'begin ', input_suffix: ' end' })
  await postTo(app, '/infill', { input_prefix: 'be', prompt: 'gin ', input_suffix: ' end' })
  expect(engine.requests.map(promptOf)).toEqual(Array(5).fill(PROMPT))
})

test('all prompts of a list share one suffix; without a suffix they are plain prompts', async () => {
  const { app, engine } = serve()
  await postTo(app, COMPLETIONS, { prompt: ['a', 'b'], suffix: 'z' })
  await postTo(app, COMPLETIONS, { prompt: 'a', suffix: '' })
  const filled = ['a', 'b'].map((prefix) => `✿prefix✿✿suffix✿z✿middle✿${prefix}`)
  expect(engine.requests.map(promptOf)).toEqual([...filled, 'a'])
  for (const [fields, param] of [
    [{ prompt: [5], suffix: 'z' }, 'suffix'],
    [{ prompt: 'a', suffix: 'z', echo: true }, 'echo'],
    [{ prompt: 'a', suffix: 5 }, 'suffix'],
  ] as const) {
    const reply = await postTo(app, COMPLETIONS, fields)
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error.param).toBe(param)
  }
})

test('/v1/fim/completions has the format of a chat completion', async () => {
  const { app, engine } = serve((request) => answer(request, 'mid'))
  const body = { prompt: 'a', suffix: 'b', random_seed: 7, max_tokens: 9, stop: ['\n'] }
  const reply = await postTo(app, '/v1/fim/completions', body)
  expect(reply.json()).toMatchObject({
    object: 'chat.completion',
    model: 'goose',
    choices: [{ index: 0, message: { role: 'assistant', content: 'mid' }, finish_reason: 'stop' }],
    usage: { completion_tokens: 4 },
  })
  const [request] = engine.requests
  expect(request!.maxTokens).toBe(9)
  expect(request!.sampling).toMatchObject({ seed: 7n, temperature: 0.2 })
  expect(request!.stop.strings).toEqual(['\n'])
  const streamed = await postTo(app, '/v1/fim/completions', { ...body, stream: true })
  const events = eventsOf(streamed.body) as { choices: { delta: { content: string } }[] }[]
  const pieces = events.slice(0, -1).map(({ choices }) => choices[0]!.delta.content)
  expect(pieces).toEqual(['', 'm', 'i', 'd', ''])
  expect(events.at(-2)).toMatchObject({ choices: [{ finish_reason: 'stop' }], usage: { completion_tokens: 4 } })
})

test.each(['/v1/fim/completions', '/infill'])('%s: a stream that cannot begin is an HTTP error', async (url) => {
  const { app } = serve(() => {
    throw new SkeinError('queue_full', 'too many requests wait')
  })
  const reply = await postTo(app, url, { prompt: 'a', stream: true })
  expect(reply.statusCode).toBe(429)
  expect(reply.headers['content-type']).toContain('application/json')
})

test('/infill has the format of llama.cpp', async () => {
  const { app, engine } = serve((request) => answer(request, 'mid', 'length'))
  const body = {
    input_prefix: 'a',
    input_suffix: 'b',
    input_extra: [{ filename: 'x.ts', text: 'other file' }],
    n_predict: 16,
    top_k: 30,
    samplers: ['top_k', 'top_p'],
    cache_prompt: true,
    t_max_predict_ms: 500,
  }
  const reply = await postTo(app, '/infill', body)
  expect(reply.json()).toMatchObject({
    content: 'mid',
    stop: true,
    stop_type: 'limit',
    tokens_predicted: 4,
    truncated: false,
    timings: { predicted_n: 4 },
  })
  const [request] = engine.requests
  expect(promptOf(request!)).toBe('other file\n\n✿prefix✿✿suffix✿b✿middle✿a')
  expect(request!.maxTokens).toBe(16)
  expect(request!.sampling).toMatchObject({ temperature: 0.8, topK: 30, topP: 0.95, minP: 0.05 })
  const events = eventsOf((await postTo(app, '/infill', { ...body, stream: true })).body)
  const pieces = (events.slice(0, -1) as { content: string; stop: boolean }[]).map(({ content, stop }) => [
    content,
    stop,
  ])
  expect(pieces).toEqual([
    ['m', false],
    ['i', false],
    ['d', false],
    ['', true],
  ])
  await postTo(app, '/infill', { input_prefix: 'a', n_predict: -1 })
  expect(engine.requests.at(-1)!.maxTokens).toBe(4096)
  const refused = await postTo(app, '/infill', { ...body, mirostat: 2 })
  expect(refused.json().error.param).toBe('mirostat')
})

test('batch FIM: pairs, formats, and equal numbers of both sides', async () => {
  const { app, engine } = serve((request) => answer(request, promptOf(request).slice(-1)))
  const path = '/FIM/v1/batch-FIM'
  const one = (await postTo(app, path, { prefix: ['a'], suffix: ['z'] })).json()
  expect(steady(one)).toEqual({
    id: 'rwkv7-batch-v3',
    object: 'chat.completion',
    model: 'rwkv7',
    choices: [{ index: 0, message: { role: 'assistant', content: 'a' }, finish_reason: 'stop' }],
  })
  const two = (await postTo(app, path, { prefix: ['a', 'b'], suffix: ['y', 'z'] })).json()
  expect(two).toMatchObject({ id: 'rwkv7-batch', object: 'FIM.completion' })
  expect(two.choices.map((choice: { message: object }) => choice.message)).toMatchObject([
    { content: 'a' },
    { content: 'b' },
  ])
  expect(engine.requests[0]).toMatchObject({
    maxTokens: 50,
    sampling: { topK: 1, topP: 0.3, presencePenalty: 0.5, frequencyPenalty: 0.5 },
  })
  for (const body of [{ prefix: ['a'], suffix: [] }, { prefix: [], suffix: [] }, { prefix: ['a'] }]) {
    const reply = await postTo(app, path, body)
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error).toEqual(expect.any(String))
  }
})
