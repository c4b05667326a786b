import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { answer } from '../helpers/fake-engine.ts'
import { COMPLETIONS, eventsOf, postTo, serve, steady } from './kit.ts'

/** The answer to a request contains its prompt and choice. */
const telling = (request: GenerateRequest) =>
  answer(request, (i) => `<${Buffer.from(request.prompt.map((t) => t - 1)).toString()}:${i}>`)

test('a completion without streaming', async () => {
  const { app } = serve((request) => answer(request, ' there', 'length'))
  const reply = await postTo(app, COMPLETIONS, { prompt: 'Hi' })
  expect(steady(reply.json())).toMatchInlineSnapshot(`
    {
      "choices": [
        {
          "finish_reason": "length",
          "index": 0,
          "logprobs": null,
          "text": " there",
        },
      ],
      "created": 0,
      "id": "cmpl-ID",
      "model": "goose",
      "object": "text_completion",
      "system_fingerprint": "fp_feedc0ffee00",
      "usage": {
        "completion_tokens": 7,
        "prompt_tokens": 2,
        "prompt_tokens_details": {
          "cached_tokens": 0,
        },
        "total_tokens": 9,
      },
    }
  `)
})

test('a completion, streamed', async () => {
  const { app } = serve((request) => answer(request, '!'))
  const reply = await postTo(app, COMPLETIONS, { prompt: 'Hi', stream: true })
  expect(steady(eventsOf(reply.body))).toMatchInlineSnapshot(`
    [
      {
        "choices": [
          {
            "finish_reason": null,
            "index": 0,
            "logprobs": null,
            "text": "!",
          },
        ],
        "created": 0,
        "id": "cmpl-ID",
        "model": "goose",
        "object": "text_completion",
        "system_fingerprint": "fp_feedc0ffee00",
      },
      {
        "choices": [
          {
            "finish_reason": "stop",
            "index": 0,
            "logprobs": null,
            "text": "",
          },
        ],
        "created": 0,
        "id": "cmpl-ID",
        "model": "goose",
        "object": "text_completion",
        "system_fingerprint": "fp_feedc0ffee00",
      },
      "[DONE]",
    ]
  `)
})

test.each([
  ['a string', 'ab', ['<ab:0>']],
  ['token ids', [98, 99], ['<ab:0>']],
  ['strings', ['a', 'b'], ['<a:0>', '<b:0>']],
  ['lists of token ids', [[98], [99]], ['<a:0>', '<b:0>']],
])('the prompt may be %s', async (_form, prompt, texts) => {
  const { app } = serve(telling)
  const reply = await postTo(app, COMPLETIONS, { prompt })
  expect(reply.json().choices.map((choice: { text: string }) => choice.text)).toEqual(texts)
})

test('an empty prompt is the end-of-text token', async () => {
  const { app, engine } = serve()
  for (const prompt of ['', []]) await postTo(app, COMPLETIONS, { prompt })
  expect(engine.requests.map(({ prompt }) => [...prompt])).toEqual([[0], [0]])
})

test('choice p·n + i is answer i of prompt p; each prompt is counted once', async () => {
  const { app } = serve(telling)
  const body = { prompt: ['a', 'bc'], n: 2 }
  const whole = (await postTo(app, COMPLETIONS, body)).json()
  const texts = ['<a:0>', '<a:1>', '<bc:0>', '<bc:1>']
  expect(whole.choices.map((c: { index: number }) => c.index)).toEqual([0, 1, 2, 3])
  expect(whole.choices.map((c: { text: string }) => c.text)).toEqual(texts)
  expect(whole.usage.prompt_tokens).toBe(3)
  const streamed = await postTo(app, COMPLETIONS, { ...body, stream: true })
  const sums = ['', '', '', '']
  for (const event of eventsOf(streamed.body).slice(0, -1)) {
    const { choices } = event as { choices: { index: number; text: string }[] }
    for (const { index, text } of choices) sums[index] += text
  }
  expect(sums).toEqual(texts)
})

test('the last chunk has usage if requested', async () => {
  const { app } = serve((request) => answer(request, 'ab'))
  const body = { prompt: 'x', stream: true, stream_options: { include_usage: true } }
  const events = eventsOf((await postTo(app, COMPLETIONS, body)).body)
  expect(events.at(-2)).toMatchObject({
    choices: [],
    usage: { prompt_tokens: 1, completion_tokens: 3, total_tokens: 4 },
  })
  expect(events.slice(0, -2).every((event) => (event as { usage: unknown }).usage === null)).toBe(true)
})

test('only streams need every token at once', async () => {
  const asks = [
    [COMPLETIONS, { prompt: 'x' }],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] }],
    ['/api/chat', { model: 'goose', messages: [{ role: 'user', content: 'x' }] }],
    ['/api/generate', { model: 'goose', prompt: 'x' }],
    ['/v1/messages', { model: 'goose', max_tokens: 9, messages: [{ role: 'user', content: 'x' }] }],
    ['/v1/responses', { model: 'goose', input: 'x', store: false }],
    ['/translate/v1/batch-translate', { source_lang: 'en', target_lang: 'zh', text_list: ['x'] }],
  ] as const
  for (const [path, body] of asks) {
    const { app, engine } = serve((request) => answer(request, 'ab'))
    for (const stream of [false, true]) await postTo(app, path, { ...body, stream })
    expect(engine.requests.map(({ isGathered }) => isGathered)).toEqual([true, false])
  }
})

test('echo with logprobs covers prompt and answer, in characters', async () => {
  const { app, engine } = serve((request) => answer(request, 'é!'))
  const body = { prompt: 'né', echo: true, logprobs: 1, max_tokens: 5 }
  const whole = (await postTo(app, COMPLETIONS, body)).json()
  expect(engine.requests[0]).toMatchObject({ logprobs: 1, promptLogprobs: 1 })
  expect(whole.choices[0].text).toBe('néé!')
  expect(whole.choices[0].logprobs).toMatchInlineSnapshot(`
    {
      "text_offset": [
        0,
        1,
        2,
        2,
        3,
        3,
      ],
      "token_logprobs": [
        null,
        -0.196,
        -0.17,
        -0.196,
        -0.17,
        -0.034,
      ],
      "tokens": [
        "n",
        "bytes:\\xc3",
        "bytes:\\xa9",
        "bytes:\\xc3",
        "bytes:\\xa9",
        "!",
      ],
      "top_logprobs": [
        null,
        {
          "bytes:\\xc3": -0.196,
        },
        {
          "bytes:\\xa9": -0.17,
        },
        {
          "bytes:\\xc3": -0.196,
        },
        {
          "bytes:\\xa9": -0.17,
        },
        {
          "!": -0.034,
        },
      ],
    }
  `)
  const streamed = await postTo(app, COMPLETIONS, { ...body, stream: true })
  const parts = eventsOf(streamed.body)
    .slice(0, -1)
    .map((e) => (e as { choices: { logprobs: { tokens: string[]; text_offset: number[] } | null }[] }).choices[0]!)
  expect(parts.flatMap((part) => part.logprobs?.tokens ?? [])).toEqual(whole.choices[0].logprobs.tokens)
  expect(parts.flatMap((part) => part.logprobs?.text_offset ?? [])).toEqual(whole.choices[0].logprobs.text_offset)
})

test('offsets are positions in the text, also where bytes are not whole characters', async () => {
  const { app } = serve((request) => answer(request, 'z'))
  // A lone continuation byte, a character cut short by "a", and one cut short by the end of the prompt.
  const prompt = [0x80, 0xe5, 0xbc, 0x61, 0xe5].map((byte) => byte + 1)
  const body = { prompt, echo: true, logprobs: 0, max_tokens: 5 }
  const [choice] = (await postTo(app, COMPLETIONS, body)).json().choices
  expect(choice.text).toBe('\ufffd\ufffda\ufffdz')
  expect(choice.logprobs.text_offset).toEqual([0, 1, 2, 2, 3, 4])
})

test('echo without new tokens scores a prompt', async () => {
  const { app, engine } = serve(function* (request) {
    yield* [...answer(request, '')].slice(0, 1)
    yield {
      type: 'finish',
      id: request.id,
      index: 0,
      reason: 'length',
      matched: null,
      completionTokens: 0,
    }
  })
  const body = { prompt: 'abc', echo: true, logprobs: 0, max_tokens: 0 }
  const whole = (await postTo(app, COMPLETIONS, body)).json()
  expect(engine.requests[0]!.maxTokens).toBe(0)
  expect(whole.choices[0].text).toBe('abc')
  expect(whole.choices[0].logprobs.token_logprobs).toEqual([null, -0.099, -0.1])
  expect(whole.usage.completion_tokens).toBe(0)
  const plain = await postTo(app, COMPLETIONS, { prompt: 'abc', max_tokens: 0 })
  expect(plain.json().error).toMatchObject({ param: 'max_tokens', code: 'invalid_request' })
})

test('one failing prompt fails the call and cancels the others', async () => {
  const { app, engine } = serve(async function* (request, signal) {
    if (request.prompt[0] === 99) {
      yield { type: 'error', id: request.id, error: { code: 'kernel_failed', message: 'NaN' } }
      return
    }
    yield { type: 'prompt', id: request.id, logprobs: null }
    await new Promise((resolve) => signal?.addEventListener('abort', resolve))
  })
  const reply = await postTo(app, COMPLETIONS, { prompt: ['a', 'b'] })
  expect(reply.statusCode).toBe(500)
  expect(engine.cancelled.map((id) => id.slice(-2))).toContain('-0')
})
