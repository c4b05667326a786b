import { expect, test } from 'vitest'
import { answer, byteCodec } from '../helpers/fake-engine.ts'
import { CHAT, eventsOf, HELLO, postTo, serve, steady } from './kit.ts'

test('a chat completion without streaming', async () => {
  const { app, engine } = serve((request) => answer(request, ' Hé!'))
  const reply = await postTo(app, CHAT, HELLO)
  expect(reply.statusCode).toBe(200)
  expect(Buffer.from(engine.requests[0]!.prompt.map((t) => t - 1)).toString()).toBe('User: Hi\n\nAssistant:')
  expect(steady(reply.json())).toMatchInlineSnapshot(`
    {
      "choices": [
        {
          "finish_reason": "stop",
          "index": 0,
          "logprobs": null,
          "message": {
            "content": "Hé!",
            "refusal": null,
            "role": "assistant",
          },
        },
      ],
      "created": 0,
      "id": "chatcmpl-ID",
      "model": "goose",
      "object": "chat.completion",
      "system_fingerprint": "fp_feedc0ffee00",
      "usage": {
        "completion_tokens": 6,
        "completion_tokens_details": {
          "reasoning_tokens": 0,
        },
        "prompt_tokens": 20,
        "prompt_tokens_details": {
          "cached_tokens": 0,
        },
        "total_tokens": 26,
      },
    }
  `)
})

test('a chat completion, streamed with usage', async () => {
  const { app } = serve((request) => answer(request, ' Hé!', 'length'))
  const body = { ...HELLO, stream: true, stream_options: { include_usage: true } }
  const reply = await postTo(app, CHAT, body)
  expect(reply.headers['content-type']).toBe('text/event-stream; charset=utf-8')
  const head = { id: 'chatcmpl-ID', object: 'chat.completion.chunk', created: 0, model: 'goose' }
  const chunk = (delta: object, finish_reason: string | null = null) => ({
    ...{ ...head, system_fingerprint: 'fp_feedc0ffee00', usage: null },
    choices: [{ index: 0, delta, logprobs: null, finish_reason }],
  })
  const counts = {
    ...{ prompt_tokens: 20, completion_tokens: 6, total_tokens: 26 },
    ...{ prompt_tokens_details: { cached_tokens: 0 }, completion_tokens_details: { reasoning_tokens: 0 } },
  }
  expect(steady(eventsOf(reply.body))).toEqual([
    chunk({ role: 'assistant', content: '' }),
    ...['H', 'é', '!'].map((content) => chunk({ content })),
    chunk({}, 'length'),
    { ...chunk({}), choices: [], usage: counts },
    '[DONE]',
  ])
})

test('without include_usage every chunk has one choice and no usage', async () => {
  const { app } = serve()
  const reply = await postTo(app, CHAT, { ...HELLO, stream: true })
  const events = eventsOf(reply.body)
  expect(events.pop()).toBe('[DONE]')
  for (const event of events as { choices: unknown[] }[]) {
    expect(event.choices).toHaveLength(1)
    expect(event).not.toHaveProperty('usage')
  }
})

interface Chunk {
  choices: { index: number; delta: Record<string, string>; logprobs: unknown }[]
  usage?: unknown
}

/** Concatenated deltas per choice. */
function addUp(body: string): Record<string, string>[] {
  const sums: Record<string, string>[] = []
  for (const event of eventsOf(body).filter((event) => event !== '[DONE]') as Chunk[]) {
    for (const { index, delta } of event.choices) {
      sums[index] ??= {}
      for (const [key, text] of Object.entries(delta)) {
        sums[index][key] = (sums[index][key] ?? '') + text
      }
    }
  }
  return sums
}

test('n choices are kept apart, streamed and whole', async () => {
  const script = (request: Parameters<typeof answer>[0]) => answer(request, (i) => ` answer ${i}`)
  const { app } = serve(script)
  const whole = (await postTo(app, CHAT, { ...HELLO, n: 3 })).json()
  const contents = whole.choices.map((choice: { message: { content: string } }) => choice.message.content)
  expect(contents).toEqual(['answer 0', 'answer 1', 'answer 2'])
  expect(whole.usage.completion_tokens).toBe(30)
  const streamed = await postTo(app, CHAT, { ...HELLO, n: 3, stream: true })
  expect(addUp(streamed.body).map((sum) => sum.content)).toEqual(contents)
})

test('a thought becomes reasoning_content and is counted', async () => {
  const { app, engine } = serve((request) => answer(request, '>\nhm < </thin\n</think>\n\nYes.\n\nNo.'))
  const body = { ...HELLO, enable_think: true }
  const whole = (await postTo(app, CHAT, body)).json()
  expect(whole.choices[0].message).toEqual({
    role: 'assistant',
    content: 'Yes.\n\nNo.',
    refusal: null,
    reasoning_content: 'hm < </thin\n',
  })
  expect(whole.usage.completion_tokens_details).toEqual({ reasoning_tokens: 22 })
  expect(Buffer.from(engine.requests[0]!.prompt.map((t) => t - 1)).toString()).toBe('User: Hi\n\nAssistant: <think')
  const streamed = await postTo(app, CHAT, { ...body, stream: true })
  expect(addUp(streamed.body)).toEqual([
    { role: 'assistant', content: 'Yes.\n\nNo.', reasoning_content: 'hm < </thin\n' },
  ])
})

test('the tokens of a thought are counted, however many come at once', async () => {
  const text = '>\nhm < </thin\n</think>\n\nYes 世界.'
  for (const ends of [[], [3], [12, 19], [21], [22], [23, 27]]) {
    const { app } = serve(function* (request) {
      const events = [...answer(request, text)]
      const tokens = [...byteCodec.encode(text)]
      const cuts = [0, ...ends, tokens.length]
      yield events[0]!
      for (let i = 1; i < cuts.length; i++) {
        const own = tokens.slice(cuts[i - 1], cuts[i])
        const piece = { index: 0, text: byteCodec.decode(own), tokens: own, logprobs: null }
        yield { type: 'text', id: request.id, ...piece }
      }
      yield events.at(-1)!
    })
    const { usage } = (await postTo(app, CHAT, { ...HELLO, enable_think: true })).json()
    expect(usage.completion_tokens_details).toEqual({ reasoning_tokens: 22 })
  }
})

test('without its thought only the answer remains', async () => {
  const { app, engine } = serve((request) => answer(request, '>\n\nYes <think> no.'))
  const whole = (await postTo(app, CHAT, { ...HELLO, enable_think: false })).json()
  expect(whole.choices[0].message.content).toBe('Yes <think> no.')
  expect(Buffer.from(engine.requests[0]!.prompt.map((t) => t - 1)).toString()).toBe(
    'User: Hi\n\nAssistant: <think>\n</think',
  )
})

test('logprobs, streamed and whole, are the same entries', async () => {
  const { app } = serve((request) => answer(request, ' é'))
  const body = { ...HELLO, logprobs: true, top_logprobs: 1 }
  const whole = (await postTo(app, CHAT, body)).json()
  expect(whole.choices[0].logprobs).toMatchInlineSnapshot(`
    {
      "content": [
        {
          "bytes": [
            32,
          ],
          "logprob": -0.033,
          "token": " ",
          "top_logprobs": [
            {
              "bytes": [
                32,
              ],
              "logprob": -0.033,
              "token": " ",
            },
          ],
        },
        {
          "bytes": [
            195,
          ],
          "logprob": -0.196,
          "token": "bytes:\\xc3",
          "top_logprobs": [
            {
              "bytes": [
                195,
              ],
              "logprob": -0.196,
              "token": "bytes:\\xc3",
            },
          ],
        },
        {
          "bytes": [
            169,
          ],
          "logprob": -0.17,
          "token": "bytes:\\xa9",
          "top_logprobs": [
            {
              "bytes": [
                169,
              ],
              "logprob": -0.17,
              "token": "bytes:\\xa9",
            },
          ],
        },
      ],
      "refusal": null,
    }
  `)
  const streamed = await postTo(app, CHAT, { ...body, stream: true })
  const chunks = eventsOf(streamed.body).slice(0, -1) as {
    choices: { logprobs: { content: unknown[] } | null }[]
  }[]
  const entries = chunks.flatMap((chunk) => chunk.choices[0]!.logprobs?.content ?? [])
  expect(entries).toEqual(whole.choices[0].logprobs.content)
})

test('an error before the first event has its status, one within the stream is an event', async () => {
  const full = serve(() => {
    throw Object.assign(new Error('unused'))
  })
  const early = await postTo(full.app, CHAT, { ...HELLO, stream: true })
  expect(early.statusCode).toBe(500)
  expect(early.json().error.message).not.toContain('unused')

  const broken = serve(function* (request) {
    yield* [...answer(request, 'ab')].slice(0, 3)
    yield {
      type: 'error',
      id: request.id,
      error: { code: 'kernel_failed', message: 'NaN at 0xdeadbeef' },
    }
  })
  const late = await postTo(broken.app, CHAT, { ...HELLO, stream: true })
  expect(late.statusCode).toBe(200)
  const last = eventsOf(late.body).at(-1) as { error: { code: string; message: string } }
  expect(last.error.code).toBe('kernel_failed')
  expect(late.body).not.toContain('0xdeadbeef')
  expect(late.body).not.toContain('[DONE]')
})

test('an answer that the engine does not finish is an error, not a short answer', async () => {
  const { app } = serve((request) => [...answer(request, 'ab')].slice(0, 3))
  expect((await postTo(app, CHAT, HELLO)).statusCode).toBe(500)
})

test('a full queue is a 429 with Retry-After, streamed or not', async () => {
  const { app } = serve(function* (request) {
    yield { type: 'error', id: request.id, error: { code: 'queue_full', message: 'queue full' } }
  })
  for (const stream of [true, false]) {
    const reply = await postTo(app, CHAT, { ...HELLO, stream })
    expect(reply.statusCode).toBe(429)
    expect(reply.headers['retry-after']).toBe('2')
    expect(reply.json()).toEqual({
      error: { message: 'queue full', type: 'rate_limit_error', param: null, code: 'queue_full' },
    })
  }
})
