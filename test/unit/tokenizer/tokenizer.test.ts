import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { Tokenizer } from '../../../src/tokenizer/tokenizer.ts'
import { parseVocabulary } from '../../../src/tokenizer/vocabulary.ts'
import { smallTokenizer, tokenizerOf, vocabularyText } from '../../helpers/vocabulary.ts'

const SEED = { seed: 20230424, numRuns: 300 }
/** Tokens that are prefixes of each other, dead ends (abcd without abc), parts of characters, a long run. */
const TOKENS = [
  'ab',
  'abcd',
  'abcdefgh',
  'bc',
  'aa',
  'aaaa',
  'a'.repeat(100),
  '\n\n',
  '\n\n\n',
  ' the',
  '你',
  '你好',
  '🙂',
  Buffer.from([0xe4, 0xbd]),
  Buffer.from([0xa0, 0xe5]),
  Buffer.from([0xf0, 0x9f]),
  Buffer.from([0x99, 0x82]),
  Buffer.from([0xff, 0xfe]),
]
const tokenizer = smallTokenizer(TOKENS)
const all = [...Array.from({ length: 256 }, (_, byte) => Buffer.from([byte])), ...TOKENS.map((t) => Buffer.from(t))]

/** The longest token at each place, found by trying all. */
function bruteForce(bytes: Uint8Array): number[] {
  const ids: number[] = []
  for (let at = 0; at < bytes.length; ) {
    const rest = Buffer.from(bytes.subarray(at))
    let best = -1
    for (const [index, token] of all.entries()) {
      const isLonger = best < 0 || token.length > all[best]!.length
      if (isLonger && rest.subarray(0, token.length).equals(token)) best = index
    }
    ids.push(best + 1)
    at += all[best]!.length
  }
  return ids
}

/** Bytes that often continue a token. */
const likelyBytes = fc
  .array(
    fc.oneof(
      fc.constantFrom(...all.slice(256)),
      fc.constantFrom(...Buffer.from('abcdefgh\n \xe4\xbd')).map((b) => Buffer.from([b])),
      fc.uint8Array({ maxLength: 3 }),
    ),
    { maxLength: 30 },
  )
  .map((parts) => new Uint8Array(Buffer.concat(parts)))

test('the longest match is always taken', () => {
  const property = fc.property(likelyBytes, (bytes) => {
    expect(Array.from(tokenizer.encodeBytes(bytes))).toEqual(bruteForce(bytes))
  })
  fc.assert(property, SEED)
})

test('any bytes survive a round trip', () => {
  const property = fc.property(likelyBytes, (bytes) => {
    expect(tokenizer.decodeBytes(tokenizer.encodeBytes(bytes))).toEqual(bytes)
  })
  fc.assert(property, SEED)
})

test('any text survives a round trip', () => {
  const property = fc.property(fc.string({ unit: 'binary', maxLength: 60 }), (value) => {
    expect(tokenizer.decode(tokenizer.encode(value))).toBe(value)
  })
  fc.assert(property, SEED)
})

test('a random vocabulary gives the same tokens as brute force', () => {
  const word = fc
    .array(fc.constantFrom(0x61, 0x62, 0x63, 0xe4), { minLength: 2, maxLength: 6 })
    .map((bytes) => Buffer.from(bytes))
  const words = fc.uniqueArray(word, { selector: (bytes) => bytes.toString('latin1'), maxLength: 40 })
  const input = fc.array(fc.constantFrom(0x61, 0x62, 0x63, 0xe4), { maxLength: 80 })
  fc.assert(
    fc.property(words, input, (tokens, bytes) => {
      const ids = smallTokenizer(tokens).encodeBytes(Uint8Array.from(bytes))
      const text = Buffer.from(bytes)
      let at = 0
      for (const id of ids) {
        const rest = text.subarray(at)
        const matches = tokens.filter((token) => rest.subarray(0, token.length).equals(token))
        const longest = matches.reduce((best, { length }) => Math.max(best, length), 1)
        const token = id <= 256 ? Buffer.from([id - 1]) : tokens[id - 257]!
        expect(token.length).toBe(longest)
        at += token.length
      }
      expect(at).toBe(bytes.length)
    }),
    { ...SEED, numRuns: 100 },
  )
})

describe('fixed rules', () => {
  test('no normalisation, no added tokens', () => {
    expect(Array.from(tokenizer.encode(''))).toEqual([])
    expect(Array.from(tokenizer.encode('\ufeffe\u0301\r\n'))).toEqual([
      0xef + 1,
      0xbb + 1,
      0xbf + 1,
      102,
      0xcc + 1,
      0x81 + 1,
      14,
      11,
    ])
    expect(tokenizer.decode(tokenizer.encode('\ufeffx'))).toBe('\ufeffx')
  })

  test('a lone surrogate is encoded as U+FFFD', () => {
    expect(tokenizer.decode(tokenizer.encode('a\ud83db'))).toBe('a\ufffdb')
  })

  test('texts longer than one chunk of output', () => {
    const text = 'xyz ab'.repeat(20_000)
    const tokens = tokenizer.encode(text)
    expect(tokens.length).toBe(5 * 20_000)
    expect(tokenizer.decode(tokens)).toBe(text)
  })

  test('ids outside the vocabulary', () => {
    const vocabSize = 1 + 256 + TOKENS.length
    expect(tokenizer.vocabSize).toBe(vocabSize)
    expect(tokenizer.bytesOf(0)).toEqual(new Uint8Array(0))
    for (const id of [vocabSize, 65535, -1, 1.5, Number.NaN]) {
      expect(Buffer.from(tokenizer.bytesOf(id)).toString()).toBe('\ufffd')
    }
    expect(tokenizer.decode([98, 0, 99999, 99])).toBe('a\ufffdb')
    const gap = smallTokenizer().vocabSize
    expect(gap).toBe(257)
  })

  test('bytesOf is a copy', () => {
    tokenizer.bytesOf(98)[0] = 0
    expect(tokenizer.decode([98])).toBe('a')
  })

  test('the hash depends on the tokens, not on how they are written', () => {
    const { hash } = smallTokenizer(['ab'])
    expect(hash).toMatch(/^[0-9a-f]{64}$/)
    expect(smallTokenizer(['ac']).hash).not.toBe(hash)
    const text = vocabularyText(['ab'])
    expect(tokenizerOf(text.split('\n').reverse().join('\n').trimStart()).hash).toBe(hash)
    const tokens = parseVocabulary(text, 'test')
    expect(Tokenizer.fromTokens(tokens, 'test').hash).toBe(hash)
    const moved = tokens.map(({ id, bytes }) => ({ id: id === 257 ? 258 : id, bytes }))
    expect(Tokenizer.fromTokens(moved, 'test').hash).not.toBe(hash)
  })
})
