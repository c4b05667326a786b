import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { goldenSamples, type RunningServer, serve, skein } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'

/** The bundled model through the whole product: processes, HTTP, the official client, the terminal. */
describe('the demo model, served', () => {
  let server: RunningServer
  let client: OpenAI
  beforeAll(async () => {
    server = await serve()
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'unused', maxRetries: 0 })
  })
  afterAll(async () => {
    expect(await server.stop()).toBe(0)
  })

  const ask = async (content: string, fields = {}) => {
    const answer = await client.chat.completions.create({
      model: 'demo',
      messages: [{ role: 'user', content }],
      temperature: 0,
      max_tokens: 200,
      ...fields,
    })
    return answer.choices[0]!
  }

  test('is listed under its name', async () => {
    const models = await client.models.list()
    expect(models.data.map(({ id }) => id)).toEqual(['demo'])
  })

  test('knows a capital and stops', async () => {
    const { message, finish_reason } = await ask('What is the capital of France?')
    expect(message.content).toContain('Paris')
    expect(finish_reason).toBe('stop')
  })

  test('speaks Chinese', async () => {
    expect((await ask('法国的首都是哪里？')).message.content).toContain('巴黎')
  })

  test('gives the answers of PyTorch, all prompts at once', async () => {
    const samples = goldenSamples().filter(({ lead }) => lead > 0.5)
    expect(samples.length).toBeGreaterThan(30)
    const answers = await Promise.all(
      samples.map(({ prompt }) =>
        client.completions.create({ model: 'demo', prompt, temperature: 0, max_tokens: 300, stop: '\n\nUser:' }),
      ),
    )
    expect(answers.map(({ choices }) => choices[0]!.text)).toEqual(samples.map(({ answer }) => answer))
  })

  test('remembers a name over three turns', async () => {
    const messages: OpenAI.ChatCompletionMessageParam[] = []
    const say = async (content: string) => {
      messages.push({ role: 'user', content })
      const answer = await client.chat.completions.create({ model: 'demo', messages, temperature: 0, max_tokens: 100 })
      const reply = answer.choices[0]!.message.content ?? ''
      messages.push({ role: 'assistant', content: reply })
      return reply
    }
    await say('My name is Anna.')
    await say('What is the capital of Japan?')
    expect(await say('What is my name?')).toContain('Anna')
  })

  test('a stream and a whole answer with the same seed agree', async () => {
    const request = {
      model: 'demo',
      messages: [{ role: 'user' as const, content: 'Tell me a story.' }],
      seed: 11,
      temperature: 1,
      top_p: 0.9,
      max_tokens: 60,
    }
    const whole = await client.chat.completions.create(request)
    let streamed = ''
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true }))
      streamed += chunk.choices[0]?.delta.content ?? ''
    expect(streamed).toBe(whole.choices[0]!.message.content)
    expect(streamed.length).toBeGreaterThan(20)
  })

  test('thinks separately from its answer on request', async () => {
    const answer = await postJson(`${server.url}/v1/chat/completions`, {
      messages: [{ role: 'user', content: 'What is the capital of Italy?' }],
      enable_think: true,
      temperature: 0,
      max_tokens: 100,
    })
    // The following lines check the format.
    const { choices } = (await answer.json()) as {
      choices: { message: { content: string; reasoning_content: string } }[]
    }
    expect(choices[0]!.message.content).toContain('Rome')
    expect(choices[0]!.message.content).not.toContain('think')
    expect(choices[0]!.message.reasoning_content.length).toBeGreaterThan(3)
  })

  test('64 conversations at once, every answer correct', async () => {
    const numbers = Array.from({ length: 64 }, (_, i) => [3 + (i % 8), 1 + Math.floor(i / 8)] as const)
    const answers = await Promise.all(numbers.map(([a, b]) => ask(`What is ${a} plus ${b}?`)))
    for (const [i, [a, b]] of numbers.entries())
      expect(answers[i]!.message.content).toMatch(new RegExp(`\\b${a + b}\\b`))
  })

  test('chat in a terminal keeps the conversation', async () => {
    const lines = 'My name is Tom.\nWhat is my name?\n'
    const { stdout, code } = await skein(['chat', '--url', server.url, '--temperature', '0'], lines)
    expect(code).toBe(0)
    expect(stdout.split('\n').at(-2)).toContain('Tom')
  })
})
