/** llama.cpp's own routes, and those of the OpenAI dialect at ai00's paths. */
import { describe, expect, test } from 'vitest'
import { answer, promptOf } from '../helpers/fake-engine.ts'
import { eventsOf, HELLO, postTo, serve } from './kit.ts'

const { app, engine } = serve((request) => answer(request, ' Yes, 世界', 'length'))
const last = () => engine.requests.at(-1)!

describe('completion', () => {
  test('without streaming: text, counts and times', async () => {
    const reply = (await postTo(app, '/completion', { prompt: 'Hi' })).json()
    expect(promptOf(last())).toBe('Hi')
    expect(last()).toMatchObject({
      maxTokens: 4096,
      sampling: { temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05, repetitionPenalty: 1 },
    })
    expect(reply).toMatchObject({
      index: 0,
      content: ' Yes, 世界',
      tokens: [],
      stop: true,
      stop_type: 'limit',
      stopping_word: '',
      tokens_evaluated: 2,
      timings: { prompt_n: 2, predicted_n: reply.tokens_predicted },
    })
  })

  test('streamed: the pieces add up, the last one has the counts, nothing follows', async () => {
    const { body } = await postTo(app, '/completion', { prompt: 'Hi', stream: true })
    const events = eventsOf(body) as { content: string; stop: boolean; tokens: number[] }[]
    expect(events.map(({ content }) => content).join('')).toBe(' Yes, 世界')
    expect(events.flatMap(({ tokens }) => tokens).length).toBe(12)
    expect(events.map(({ stop }) => stop)).toEqual([...events.slice(1).map(() => false), true])
    expect(body).not.toContain('[DONE]')
  })

  test('fields set the parameters of the engine', async () => {
    await postTo(app, '/completion', {
      prompt: [73, 'i'],
      n_predict: 5,
      temperature: 0,
      seed: 7,
      repeat_penalty: 1.1,
      stop: ['\n'],
      logit_bias: [
        [5, -1.5],
        [6, false],
      ],
      ignore_eos: true,
      grammar: 'root ::= "a"',
      n_probs: 2,
    })
    expect(promptOf(last())).toBe('Hi')
    expect(last()).toMatchObject({
      maxTokens: 5,
      logprobs: 2,
      constraint: { type: 'grammar', ebnf: 'root ::= "a"' },
      stop: { strings: ['\n'], ignoreEos: true },
      sampling: { temperature: 0, seed: 7n, repetitionPenalty: 1.1, logitBias: [[5, -1.5]], bannedTokens: [6] },
    })
  })

  test('probabilities', async () => {
    const reply = (await postTo(app, '/completion', { prompt: 'Hi', n_probs: 1 })).json()
    expect(reply.completion_probabilities[0]).toMatchObject({
      id: 33,
      token: ' ',
      bytes: [32],
      logprob: expect.any(Number),
      top_logprobs: [{ token: expect.any(String) }],
    })
    const { body } = await postTo(app, '/completion', { prompt: 'Hi', n_probs: 1, stream: true })
    const all = (eventsOf(body) as (typeof reply)[]).flatMap(({ completion_probabilities: own }) => own ?? [])
    expect(all).toEqual(reply.completion_probabilities)
    const most = await postTo(app, '/completion', { prompt: 'Hi', n_probs: 20, n_predict: 65_536 })
    expect(most.statusCode).toBe(413)
  })

  test('requests of llama.vim and SillyTavern with disabled samplers are accepted', async () => {
    const reply = await postTo(app, '/completion', {
      prompt: 'Hi',
      n_predict: -1,
      mirostat: 0,
      mirostat_tau: 5,
      mirostat_eta: 0.1,
      dry_multiplier: 0,
      dry_base: 1.75,
      dynatemp_range: 0,
      dynatemp_exponent: 1,
      xtc_probability: 0,
      xtc_threshold: 0.1,
      typical_p: 1,
      top_n_sigma: -1,
      repeat_last_n: 64,
      n_keep: 0,
      cache_prompt: true,
      id_slot: -1,
      t_max_predict_ms: 1000,
      samplers: ['top_k', 'temperature'],
      grammar: '',
    })
    expect(reply.statusCode).toBe(200)
    expect(reply.headers.warnings).toMatch(/^samplers was ignored[^;]*$/)
    expect(last().constraint).toBeUndefined()
  })

  test('penalties over the last 0 tokens are off; over 64 they count the whole text, which is said', async () => {
    const ask = (repeat_last_n: number) =>
      postTo(app, '/completion', { prompt: 'Hi', repeat_penalty: 1.1, presence_penalty: 1, repeat_last_n })
    expect((await ask(64)).headers.warnings).toBe('repeat_last_n was ignored: penalties count the whole text')
    expect(last().sampling).toMatchObject({ repetitionPenalty: 1.1, presencePenalty: 1 })
    expect((await ask(-1)).headers.warnings).toBeUndefined()
    expect((await ask(0)).headers.warnings).toBeUndefined()
    expect(last().sampling).toMatchObject({ repetitionPenalty: 1, presencePenalty: 0 })
  })

  test.each([
    [{ mirostat: 2 }, 'mirostat'],
    [{ dry_multiplier: 0.8 }, 'dry_multiplier'],
    [{ logit_bias: [['the', 1]] }, 'logit_bias[0]'],
    [{ grammar: 'root ::= "a"', json_schema: { type: 'object' } }, 'json_schema'],
    [{ n_predict: 'many' }, 'n_predict'],
  ])('%j is refused by name, in the format of llama.cpp', async (fields, param) => {
    const reply = await postTo(app, '/completion', { prompt: 'Hi', ...fields })
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error).toMatchObject({ code: 400, type: 'invalid_request_error', param })
  })
})

test('props, slots, health, template', async () => {
  expect((await app.inject('/props')).json()).toMatchObject({
    total_slots: 16,
    model_alias: 'goose',
    default_generation_settings: { n_ctx: 5000 },
  })
  const slots = (await app.inject('/slots')).json() as { is_processing: boolean }[]
  expect(slots.filter((slot) => slot.is_processing).length).toBe(2)
  expect((await app.inject('/v1/health')).json()).toEqual({ status: 'ok' })
  expect((await postTo(app, '/apply-template', HELLO)).json()).toEqual({ prompt: 'User: Hi\n\nAssistant:' })
})

test('ai00', async () => {
  for (const base of ['/api/oai', '/api/oai/v1']) {
    expect((await app.inject(`${base}/models`)).json().data).toMatchObject([{ id: 'goose' }])
    const chat = (await postTo(app, `${base}/chat/completions`, HELLO)).json()
    expect(chat.choices[0].message.content).toBe('Yes, 世界')
    const text = (await postTo(app, `${base}/completions`, { prompt: 'Hi' })).json()
    expect(text.choices[0].text).toBe(' Yes, 世界')
    const refused = await postTo(app, `${base}/chat/completions`, { ...HELLO, sampler_override: { type: 'Nucleus' } })
    expect(refused.json().error.param).toBe('sampler_override')
  }
})
