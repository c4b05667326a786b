/** Text prompts to tokens: on the event loop, or in a thread if they are long. */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { beforeAll, expect, test } from 'vitest'
import { encodePrompt, encodePrompts } from '../../src/api/encode.ts'
import type { ServedModel } from '../../src/api/models.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { loadTokenizer } from '../../src/host/checkpoints/open-model.ts'
import type { Tokenizer } from '../../src/tokenizer/tokenizer.ts'
import { FAKE_INFO, FakeEngineClient } from '../helpers/fake-engine.ts'

let tokenizer: Tokenizer
beforeAll(() => {
  tokenizer = loadTokenizer({ model: DEMO_MODEL })
})

function model(maxPromptTokens: number): ServedModel {
  const { vocabSize } = tokenizer
  const info = { ...FAKE_INFO, maxPromptTokens, model: { ...FAKE_INFO.model, vocabSize } }
  return { id: 'm', created: 0, client: new FakeEngineClient(undefined, info), tokenizer }
}

/** Reproducible text with all kinds of characters. */
function muddle(length: number, seed: number): string {
  let text = ''
  for (let state = seed; text.length < length; ) {
    state = (state * 1103515245 + 12345) % 2 ** 31
    text += ['a', ' the', 'b', '日', '本', '語', '👩', '\n', 'é', '\ud83d'][(state >> 8) % 10]
  }
  return text
}

const never = new AbortController().signal

test.each([10_000, 16_384, 16_385, 300_000])(
  '%i characters in parts give the same tokens as the whole text',
  async (size) => {
    const text = muddle(size, size)
    const tokens = await encodePrompt(model(10 ** 6), text, 'prompt', never)
    expect(tokens).toEqual(tokenizer.encode(text))
  },
)

test('a list gives the tokens of each text, in order', async () => {
  const texts = Array.from({ length: 512 }, (_, i) => muddle(i, i))
  const all = await encodePrompts(model(10 ** 6), texts, String, never)
  const expected = texts.map((text) => (text === '' ? Int32Array.of(0) : tokenizer.encode(text)))
  expect(all).toEqual(expected)
})

test('long texts do not block the event loop', async () => {
  const text = muddle(7_000_000, 1)
  await encodePrompt(model(10 ** 7), muddle(20_000, 1), 'prompt', never)
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  const start = performance.now()
  await encodePrompt(model(10 ** 7), text, 'prompt', never)
  const took = performance.now() - start
  delay.disable()
  // If encoded on the event loop they would be equal.
  expect(delay.max / 1e6).toBeLessThan(took / 4)
})

test('encoding stops at the limit, and when the client leaves', async () => {
  const long = 'x '.repeat(2_500_000)
  const refused = { code: 'too_large', param: 'prompt' }
  await expect(encodePrompt(model(1000), long, 'prompt', never)).rejects.toMatchObject(refused)
  const many = encodePrompts(model(10 ** 6), Array(4).fill('x '.repeat(500_000)), String, never)
  await expect(many).rejects.toThrow('more than 1048576 tokens')
  const gone = AbortSignal.abort()
  const abandoned = encodePrompt(model(10 ** 7), muddle(500_000, 1), 'prompt', gone)
  await expect(abandoned).rejects.toThrow()
})
