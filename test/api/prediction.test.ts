/** Predicted outputs by OpenAI's own client, unchanged, over the demo model. */
import type { FastifyInstance } from 'fastify'
import type OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { openAiOf } from './openai.ts'

describe.runIf(hasDemo)('predictions', () => {
  let app: FastifyInstance
  let client: OpenAI
  beforeAll(async () => {
    ;({ app } = await serveDemo({}, { device: 'cpu', slots: 4, threads: 1, speculate: 'prediction' }))
    client = await openAiOf(app)
  })
  afterAll(() => app.close())

  type Content = OpenAI.ChatCompletionPredictionContent['content']
  const asked = (content?: Content) => ({
    model: 'demo',
    messages: [{ role: 'user' as const, content: 'Tell me a story about a dog.' }],
    temperature: 0,
    max_tokens: 120,
    ...(content === undefined ? {} : { prediction: { type: 'content' as const, content } }),
  })
  const ask = async (content?: Content) => {
    const { choices, usage } = await client.chat.completions.create(asked(content))
    return { text: choices[0]!.message.content!, usage: usage! }
  }

  /** Rows carry guesses while that takes less time by the last steps; on a busy machine some answers pass before it does. */
  const until = async <T>(isEnough: (answer: T) => boolean, answer: () => Promise<T>): Promise<T> => {
    for (let left = 40; ; left--) {
      const last = await answer()
      if (isEnough(last) || left === 0) return last
    }
  }
  const acceptedOf = ({ completion_tokens_details: details }: OpenAI.CompletionUsage) =>
    details?.accepted_prediction_tokens ?? 0

  test('predicted tokens that are drawn count as accepted, and the answer is the same', async () => {
    const plain = await ask()
    expect(plain.text.length).toBeGreaterThan(60)
    expect(plain.usage.completion_tokens_details).not.toHaveProperty('accepted_prediction_tokens')
    const { usage } = await until(
      ({ usage }) => acceptedOf(usage) > 0.2 * usage.completion_tokens,
      async () => {
        const answer = await ask(plain.text)
        expect(answer.text).toBe(plain.text)
        return answer
      },
    )
    expect(usage.completion_tokens).toBe(plain.usage.completion_tokens)
    const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } =
      usage.completion_tokens_details!
    expect(accepted).toBeGreaterThan(0.2 * usage.completion_tokens)
    expect(rejected).toBeLessThan(8)
    expect(usage.completion_tokens_details).toMatchObject({ guesses: { prediction: { accepted, rejected } } })
  })

  test('streamed, with an edit, in parts', async () => {
    const plain = await ask()
    const words = plain.text.split(' ')
    words[8] = 'suddenly'
    const parts = [words.slice(0, 4).join(' '), ` ${words.slice(4).join(' ')}`]
    const content = parts.map((text) => ({ type: 'text' as const, text }))
    const streamed = async () => {
      const stream = await client.chat.completions.create({
        ...asked(content),
        stream: true,
        stream_options: { include_usage: true },
      })
      let [text, usage] = ['', null as OpenAI.CompletionUsage | null]
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? ''
        usage = chunk.usage ?? usage
      }
      expect(text).toBe(plain.text)
      return usage!
    }
    const isEnough = (usage: OpenAI.CompletionUsage) => {
      const { rejected_prediction_tokens: rejected } = usage.completion_tokens_details!
      return acceptedOf(usage) > 0.2 * usage.completion_tokens && rejected! > 0
    }
    const usage = await until(isEnough, streamed)
    const details = usage.completion_tokens_details!
    expect(details.accepted_prediction_tokens).toBeGreaterThan(0.2 * usage.completion_tokens)
    expect(details.rejected_prediction_tokens).toBeGreaterThan(0)
  })

  test('a wrong prediction changes nothing, and is reported', async () => {
    const plain = await ask()
    const { text, usage } = await ask('Zebras 123 {"never": "said"}')
    expect(text).toBe(plain.text)
    expect(usage.completion_tokens_details).toMatchObject({
      accepted_prediction_tokens: 0,
      rejected_prediction_tokens: expect.any(Number),
    })
  })

  test('other kinds, non-text parts, and routes without predictions are refused by name', async () => {
    const send = (url: string, payload: object) => app.inject({ method: 'POST', url: `/v1/${url}`, payload })
    const messages = [{ role: 'user', content: 'Hi' }]
    for (const prediction of [
      { type: 'image', content: 'a' },
      { type: 'content' },
      { type: 'content', content: [{ type: 'image_url' }] },
    ]) {
      const reply = await send('chat/completions', { messages, prediction })
      expect(reply.statusCode).toBe(400)
      expect(reply.json().error.param).toMatch(/^prediction/)
    }
    const prediction = { type: 'content', content: 'Hello' }
    const reply = await send('completions', { prompt: 'Hi', prediction })
    expect([reply.statusCode, reply.json().error.param]).toEqual([400, 'prediction'])
    const empty = { messages, prediction: { type: 'content', content: '' }, max_tokens: 2 }
    expect((await send('chat/completions', empty)).statusCode).toBe(200)
  })
})
