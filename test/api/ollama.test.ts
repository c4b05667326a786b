/** Ollama's own client, unchanged, against a listening gateway. */
import { setTimeout as delay } from 'node:timers/promises'
import { Ollama } from 'ollama'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { EngineEvent } from '../../src/engine/messages.ts'
import { answer, FAKE_INFO, promptOf } from '../helpers/fake-engine.ts'
import { postJson } from '../helpers/post-json.ts'
import { postTo, serve, urlOf } from './kit.ts'

const KEY = 'sk-right'

async function* slowly(events: Iterable<EngineEvent>) {
  for (const event of events) {
    if (event.type === 'finish') await delay(30)
    yield event
  }
}

const { app, engine } = serve(
  (request) => {
    const text = promptOf(request)
    if (text.includes('FULL')) {
      return [{ type: 'error', id: request.id, error: { code: 'queue_full', message: 'full' } }]
    }
    if (text.includes('MID')) {
      const error = { code: 'kernel_failed', message: 'broke' } as const
      return [...[...answer(request, 'ab')].slice(0, 3), { type: 'error', id: request.id, error }]
    }
    if (text.includes('SLOW')) return slowly(answer(request, ' Yes, 世界'))
    if (text.endsWith('<think')) return answer(request, '>\nHm.\n</think>\nYes, 世界')
    return answer(request, ' Yes, 世界')
  },
  { keys: [KEY] },
)
let client: Ollama
let host: string
beforeAll(async () => {
  host = await urlOf(app)
  client = new Ollama({ host, headers: { authorization: `Bearer ${KEY}` } })
})
afterAll(() => app.close())

const hi = [{ role: 'user', content: 'Hi' }]
const twins = ['a', 'a'].map((name) => ({ type: 'function', function: { name } }))
const last = () => engine.requests.at(-1)!

describe('models', () => {
  test('tags, ps, version', async () => {
    const { models } = await client.list()
    expect(models).toMatchObject([{ name: 'goose:latest', model: 'goose:latest', size: 4000 }])
    expect(models[0]!.details).toMatchObject({ family: 'rwkv7', quantization_level: 'F32' })
    expect((await client.ps()).models).toMatchObject([{ name: 'goose:latest', size_vram: 0 }])
    const { version } = await client.version()
    expect(version).toMatch(/^0\.\d+\.\d+$/)
  })

  test.each([
    ['cuda:0 NVIDIA H200', 4000],
    ['webgpu: NVIDIA H200 (Vulkan driver 570)', 4000],
    ['pipeline of 1 layer on cuda:0 NVIDIA H200; 1 layer on cuda:1 NVIDIA H200', 4000],
    ['cpu: avx512 (vnni, bf16), 2 threads', 0],
  ])('ps: the weights on %s', async (device, bytes) => {
    const { app } = serve(undefined, {}, { ...FAKE_INFO, model: { ...FAKE_INFO.model, device } })
    expect((await app.inject('/api/ps')).json().models).toMatchObject([{ size: 4000, size_vram: bytes }])
  })

  test('show', async () => {
    const shown = await client.show({ model: 'goose:latest' })
    expect(shown.capabilities).toContain('completion')
    expect(shown.model_info).toMatchObject({ 'general.architecture': 'rwkv7', 'rwkv7.context_length': 5000 })
    await expect(client.show({ model: 'duck' })).rejects.toThrow(/no model of that name/)
  })
})

describe('chat', () => {
  test('without streaming', async () => {
    const reply = await client.chat({ model: 'goose', messages: hi })
    expect(promptOf(last())).toBe('User: Hi\n\nAssistant:')
    expect(reply).toMatchObject({
      model: 'goose',
      message: { role: 'assistant', content: 'Yes, 世界' },
      done: true,
      done_reason: 'stop',
      prompt_eval_count: 20,
    })
    expect(reply.eval_count).toBeGreaterThan(10)
    expect(Number.isInteger(reply.total_duration)).toBe(true)
  })

  test('streamed: the pieces add up, the last one has the counts', async () => {
    const pieces = []
    for await (const piece of await client.chat({ model: 'goose', messages: hi, stream: true })) {
      pieces.push(piece)
    }
    expect(pieces.map(({ message }) => message.content).join('')).toBe('Yes, 世界')
    expect(pieces.map(({ done }) => done)).toEqual([...pieces.slice(1).map(() => false), true])
    expect(pieces.at(-1)).toMatchObject({ done_reason: 'stop', prompt_eval_count: 20 })
  })

  test('thoughts are separate', async () => {
    const reply = await client.chat({ model: 'goose', messages: hi, think: true })
    expect(reply.message).toMatchObject({ thinking: 'Hm.\n', content: 'Yes, 世界' })
    await client.chat({ model: 'goose', messages: hi, think: 'low' })
    expect(promptOf(last())).toBe('User: Hi (think a bit)\n\nAssistant: <think')
    await client.chat({ model: 'goose', messages: hi, think: false })
    expect(promptOf(last())).toMatch(/Assistant: <think>\n<\/think$/)
  })

  test('options set the parameters of the engine', async () => {
    await client.chat({ model: 'goose', messages: hi })
    expect(last()).toMatchObject({
      maxTokens: 4096,
      sampling: { temperature: 0.8, topK: 40, topP: 0.9, repetitionPenalty: 1 },
    })
    const options = {
      temperature: 0,
      top_k: 7,
      top_p: 0.5,
      min_p: 0.1,
      seed: 42,
      num_predict: 5,
      repeat_penalty: 1.2,
      presence_penalty: 0.3,
      frequency_penalty: 0.4,
      stop: ['\n'],
      num_ctx: 4096,
      mirostat: 0,
      mirostat_tau: 5,
    }
    await client.chat({ model: 'goose', messages: hi, options })
    expect(last()).toMatchObject({
      maxTokens: 5,
      stop: { strings: expect.arrayContaining(['\n']) },
      sampling: {
        temperature: 0,
        topK: 7,
        topP: 0.5,
        minP: 0.1,
        seed: 42n,
        repetitionPenalty: 1.2,
        presencePenalty: 0.3,
        frequencyPenalty: 0.4,
      },
    })
  })

  test('a loaded model is reported; an earlier call and its result are part of the prompt', async () => {
    const count = engine.requests.length
    expect(await client.chat({ model: 'goose', messages: [] })).toMatchObject({ done: true, done_reason: 'load' })
    expect(engine.requests.length).toBe(count)
    await client.chat({
      model: 'goose',
      messages: [
        ...hi,
        { role: 'assistant', content: '', tool_calls: [{ function: { name: 'add', arguments: { a: 1 } } }] },
        { role: 'tool', content: '3', tool_name: 'add' },
      ],
    })
    expect(promptOf(last())).toContain('```json\n{"name":"add","arguments":{"a":1}}\n```')
    expect(promptOf(last())).toContain('User: Function output:\n3')
  })

  test('log-probabilities', async () => {
    const { body } = await postTo(app, '/api/chat', {})
    expect(body).toContain('error')
    const reply = await postJson(
      `${host}/api/chat`,
      { model: 'goose', messages: hi, stream: false, logprobs: true, top_logprobs: 1 },
      { authorization: `Bearer ${KEY}` },
    )
    const { logprobs } = (await reply.json()) as { logprobs: { bytes: number[] }[] }
    expect(logprobs[0]).toMatchObject({ bytes: [32], top_logprobs: [expect.anything()] })
    const most = { logprobs: true, top_logprobs: 20, stream: false, options: { num_predict: 65_536 } }
    const refused = await postJson(
      `${host}/api/generate`,
      { model: 'goose', prompt: 'Hi', ...most },
      { authorization: `Bearer ${KEY}` },
    )
    expect([refused.status, await refused.text()]).toEqual([413, expect.stringContaining('expected at most 1048576')])
  })
})

describe('generate', () => {
  test('with the template, raw, and with a suffix', async () => {
    const reply = await client.generate({ model: 'goose', prompt: 'Hi', system: 'Be kind.' })
    expect(reply).toMatchObject({ response: 'Yes, 世界', done: true, done_reason: 'stop' })
    expect(promptOf(last())).toBe('System: Be kind.\n\nUser: Hi\n\nAssistant:')
    // No template, so the space is from the model.
    const raw = await client.generate({ model: 'goose', prompt: 'Hi', raw: true })
    expect(raw).toMatchObject({ response: ' Yes, 世界', prompt_eval_count: 2 })
    expect(promptOf(last())).toBe('Hi')
    for (const isRaw of [false, true]) {
      const slow = await client.generate({ model: 'goose', prompt: 'SLOW', raw: isRaw })
      expect(slow.eval_duration).toBeGreaterThan(20e6)
    }
    await client.generate({ model: 'goose', prompt: 'a', suffix: 'c' })
    expect(promptOf(last())).toContain('✿suffix✿c✿middle✿a')
  })

  test('streamed', async () => {
    for (const raw of [false, true]) {
      let text = ''
      const stream = await client.generate({ model: 'goose', prompt: 'Hi', raw, stream: true })
      for await (const { response } of stream) text += response
      expect(text).toBe(raw ? ' Yes, 世界' : 'Yes, 世界')
    }
  })
})

describe('refusals', () => {
  test('errors are strings, before and within a stream', async () => {
    await expect(client.chat({ model: 'duck', messages: hi })).rejects.toThrow(/no model of that name/)
    const full = [{ role: 'user', content: 'FULL' }]
    await expect(client.chat({ model: 'goose', messages: full, stream: true })).rejects.toThrow('full')
    const mid = await client.chat({ model: 'goose', messages: [{ role: 'user', content: 'MID' }], stream: true })
    await expect(
      (async () => {
        for await (const _piece of mid);
      })(),
    ).rejects.toThrow('the model failed on this request')
  })

  test.each([
    ['/api/chat', { model: 'goose', messages: [{ role: 'bot', content: '' }] }, /messages\[0\]\.role/],
    ['/api/chat', { model: 'goose', messages: [{ role: 'user', images: ['x'] }] }, /images/],
    ['/api/chat', { model: 'goose', messages: hi, options: { mirostat: 2 } }, /options\.mirostat/],
    ['/api/chat', { model: 'goose', messages: hi, options: { typical_p: 0.5 } }, /options\.typical_p/],
    ['/api/chat', { model: 'goose', messages: hi, think: 'deeply' }, /think/],
    ['/api/chat', { model: 'goose', messages: hi, tools: twins }, /two of them/],
    ['/api/generate', { model: 'goose', prompt: 'a', template: 'b' }, /template/],
    ['/api/generate', { model: 'goose', prompt: 'a', context: [1] }, /context/],
    ['/api/generate', { model: 'goose', prompt: 'a', raw: true, system: 'b' }, /system/],
    ['/api/create', { model: 'x' }, /skein serve/],
    ['/api/copy', { source: 'x' }, /--model-name/],
    ['/api/embed', { model: 'goose', input: 'a' }, /--embeddings/],
  ])('%s %j', async (url, payload, message) => {
    const reply = await app.inject({ method: 'POST', url, payload, headers: { authorization: `Bearer ${KEY}` } })
    expect(reply.statusCode).toBe(400)
    expect(reply.json()).toEqual({ error: expect.stringMatching(message) })
  })

  test('delete and pull', async () => {
    await expect(client.delete({ model: 'goose' })).rejects.toThrow(/skein rm/)
    expect(await client.pull({ model: 'goose' })).toEqual({ status: 'success' })
    await expect(client.pull({ model: 'duck' })).rejects.toThrow(/skein pull/)
  })

  test('an unknown field is named in the header `warnings`', async () => {
    const reply = await app.inject({
      method: 'POST',
      url: '/api/chat',
      payload: { model: 'goose', messages: hi, stream: false, options: { temprature: 1 }, sytem: 'x' },
      headers: { authorization: `Bearer ${KEY}` },
    })
    expect(reply.statusCode).toBe(200)
    expect(reply.headers.warnings).toContain('did you mean options.temperature?')
    expect(reply.headers.warnings).toContain('sytem is no field')
  })

  test('penalties over the last 0 tokens are off', async () => {
    const ask = async (repeat_last_n: number) => {
      const options = { repeat_penalty: 1.1, frequency_penalty: 1, repeat_last_n }
      const payload = { model: 'goose', messages: hi, stream: false, options }
      const headers = { authorization: `Bearer ${KEY}` }
      return (await app.inject({ method: 'POST', url: '/api/chat', payload, headers })).headers.warnings
    }
    expect(await ask(64)).toContain('options.repeat_last_n was ignored')
    expect(last().sampling).toMatchObject({ repetitionPenalty: 1.1, frequencyPenalty: 1 })
    expect(await ask(0)).toBeUndefined()
    expect(last().sampling).toMatchObject({ repetitionPenalty: 1, frequencyPenalty: 0 })
  })
})
