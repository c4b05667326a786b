import { expect, test } from 'vitest'
import { encodePrompt } from '../../src/api/encode.ts'
import type { ServedModel, TextCodec } from '../../src/api/models.ts'
import { byteCodec, FAKE_INFO, FakeEngineClient } from '../helpers/fake-engine.ts'

/** Longest match from the left over these words and all single bytes, like the World tokenizer. */
const WORDS = [
  'aa',
  'aaa',
  'aab',
  'baaaa',
  'ab',
  '\n\n',
  '\n\n\n',
  '日',
  '本語',
  '👩',
  'ééé',
  'aaaaaaaaaaaaaaab',
]
const ENTRIES = WORDS.map((word) => Buffer.from(word))

const greedyCodec: TextCodec = {
  vocabSize: 257 + WORDS.length,
  encode(text) {
    const bytes = Buffer.from(text)
    const tokens: number[] = []
    for (let at = 0; at < bytes.length; ) {
      let best = bytes[at]! + 1
      let length = 1
      ENTRIES.forEach((entry, i) => {
        if (entry.length > length && bytes.subarray(at, at + entry.length).equals(entry)) {
          best = 257 + i
          length = entry.length
        }
      })
      tokens.push(best)
      at += length
    }
    return Int32Array.from(tokens)
  },
  decode: (tokens) => Buffer.concat([...tokens].map((t) => greedyCodec.bytesOf(t))).toString(),
  bytesOf: (token) => (token < 257 ? byteCodec.bytesOf(token) : ENTRIES[token - 257]!),
}

function model(maxPromptTokens: number): ServedModel {
  const vocabSize = greedyCodec.vocabSize
  const info = { ...FAKE_INFO, maxPromptTokens, model: { ...FAKE_INFO.model, vocabSize } }
  return {
    id: 'm',
    created: 0,
    client: new FakeEngineClient(undefined, info),
    tokenizer: greedyCodec,
  }
}

/** Reproducible text in which tokens overlap in every way. */
function muddle(length: number, seed: number): string {
  let text = ''
  for (let state = seed; text.length < length; ) {
    state = (state * 1103515245 + 12345) % 2 ** 31
    text += ['a', 'aa', 'b', '日', '本', '語', '👩', '\n', 'é', 'x'][(state >> 8) % 10]
  }
  return text
}

const never = new AbortController().signal

test.each([1, 2, 3, 4, 5])('long text gives the same tokens in slices (seed %i)', async (seed) => {
  const text = muddle(200_000, seed)
  const sliced = await encodePrompt(model(10 ** 6), text, 'prompt', never)
  expect(Buffer.from(sliced.buffer).equals(Buffer.from(greedyCodec.encode(text).buffer))).toBe(true)
})

test('text without a single whole character at a slice end', async () => {
  const text = '👩'.repeat(100_000)
  const sliced = await encodePrompt(model(10 ** 6), text, 'prompt', never)
  expect(sliced).toHaveLength(100_000)
})

test('tokenising gives the event loop its turns, and stops at the limit and when the client goes', async () => {
  let turns = 0
  const ticking = setInterval(() => turns++, 0)
  await encodePrompt(model(10 ** 7), muddle(1_000_000, 1), 'prompt', never)
  clearInterval(ticking)
  expect(turns).toBeGreaterThan(5)

  let encoded = 0
  const counting: TextCodec = {
    ...greedyCodec,
    encode: (text) => {
      encoded += text.length
      return greedyCodec.encode(text)
    },
  }
  const long = { ...model(1000), tokenizer: counting }
  await expect(encodePrompt(long, 'x'.repeat(5_000_000), 'prompt', never)).rejects.toMatchObject({
    code: 'too_large',
    param: 'prompt',
  })
  expect(encoded).toBeLessThan(200_000)

  const gone = AbortSignal.abort()
  await expect(encodePrompt(model(10 ** 7), muddle(500_000, 1), 'prompt', gone)).rejects.toThrow()
})
