import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { AnswerText } from '../../src/engine/answer/answer-text.ts'
import { StopStrings } from '../../src/engine/answer/stop-strings.ts'
import type { TokenText } from '../../src/engine/messages.ts'
import { trials } from '../helpers/slow.ts'
import { firstMatch } from './kit.ts'

const utf8 = (text: string) => new TextEncoder().encode(text)
const decode = (bytes: Uint8Array, stream: boolean) =>
  new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes, { stream })

interface Outcome {
  readonly text: string
  readonly tokens: readonly number[]
  readonly matched: string | null
  /** The text after each token, as in a stream. */
  readonly growth: readonly string[]
}

/** Feeds pieces as tokens 1, 2, …; the results of `take` after each are the stream. */
function feed(pieces: readonly Uint8Array[], stops: readonly string[]): Outcome {
  const tokenBytes = { bytesOf: (token: number) => pieces[token - 1]! }
  const answer = new AnswerText(tokenBytes, new StopStrings(stops), true)
  let text = ''
  const tokens: number[] = []
  const growth: string[] = []
  const collect = () => {
    const released = answer.take()
    text += released?.text ?? ''
    tokens.push(...(released?.tokens ?? []))
    expect(released?.logprobs?.map(({ token }) => token) ?? []).toEqual(released?.tokens ?? [])
    growth.push(text)
  }
  for (const i of pieces.keys()) {
    const logprob: TokenText = { token: i + 1, logprob: 0, top: [], bytes: pieces[i]!, topBytes: [] }
    const matched = answer.push(i + 1, logprob)
    collect()
    if (matched !== null) return { text, tokens, matched, growth }
  }
  const matched = answer.end()
  collect()
  return { text, tokens, matched, growth }
}

/** The same, derived from whole prefixes of the bytes. */
function bruteForce(pieces: readonly Uint8Array[], stops: readonly string[]): Omit<Outcome, 'growth'> {
  const prefix = (count: number) => Uint8Array.from(pieces.slice(0, count).flatMap((p) => [...p]))
  const text = decode(prefix(pieces.length), false)
  const match = firstMatch(text, stops)
  const end = match?.at ?? text.length
  const tokens: number[] = []
  for (const [i, piece] of pieces.entries()) {
    const start = decode(prefix(i), true).length
    if (match !== null && (piece.length === 0 ? start > end : start >= end)) break
    tokens.push(i + 1)
  }
  return { text: text.slice(0, end), tokens, matched: match?.stop ?? null }
}

/** Cuts bytes at the given places, which may be inside characters and may coincide. */
function cutAt(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const at = places.map((place) => place % (bytes.length + 1)).sort((a, b) => a - b)
  return [...at, bytes.length].map((end, i) => bytes.slice(at[i - 1] ?? 0, end))
}

const stopCharacters = fc.constantFrom('a', 'b', '\n', 'é', '世', '🙂', '\uFFFD')
const stopString = fc.string({ unit: stopCharacters, minLength: 1, maxLength: 5 })
const invalid = fc.constantFrom([0xff], [0xe4, 0xb8], [0xed, 0xa0], [0xf0, 0x9f, 0x99], [0x80], [0xc3])
const someBytes = fc
  .array(
    fc.oneof({ weight: 9, arbitrary: stopCharacters.map((c) => [...utf8(c)]) }, { weight: 1, arbitrary: invalid }),
    { maxLength: 24 },
  )
  .map((parts) => Uint8Array.from(parts.flat()))

describe('stop strings', () => {
  test('generated cases equal brute force, wherever tokens are cut', () => {
    const numMatches = { some: 0, none: 0 }
    fc.assert(
      fc.property(
        someBytes,
        fc.array(fc.nat(), { maxLength: 16 }),
        fc.array(stopString, { maxLength: 4 }),
        (bytes, places, stops) => {
          const pieces = cutAt(bytes, places)
          const { growth, ...outcome } = feed(pieces, stops)
          expect(outcome).toEqual(bruteForce(pieces, stops))
          for (const [i, text] of growth.entries()) {
            expect(outcome.text.startsWith(text)).toBe(true)
            if (i > 0) expect(text.startsWith(growth[i - 1]!)).toBe(true)
          }
          numMatches[outcome.matched === null ? 'none' : 'some']++
        },
      ),
      { numRuns: trials(3000, 10_000), seed: 20 },
    )
    expect(Math.min(numMatches.some, numMatches.none)).toBeGreaterThan(trials(400, 1500))
  })

  test.each([
    ['the match that ends first wins', 'xabcdef', ['abcdef', 'bc'], 'xa', 'bc'],
    ['of those that end together the longest', 'xabc', ['c', 'abc', 'bc'], 'x', 'abc'],
    ['a false start is given back', 'aab\nUxer', ['\nUser:'], 'aab\nUxer', null],
    ['a match inside a false start', 'aaab', ['aab'], 'a', 'aab'],
    ['at the very start', 'ab', ['a'], '', 'a'],
    ['a half match at the end is text', 'ab\n\nUse', ['\n\nUser:'], 'ab\n\nUse', null],
    ['regular expressions are text', 'a.b', ['.'], 'a', '.'],
  ])('%s', (_, text, stops, expected, matched) => {
    const pieces = [...text].map(utf8)
    expect(feed(pieces, stops)).toMatchObject({ text: expected, matched })
    expect(feed([utf8(text)], stops)).toMatchObject({ text: expected, matched })
  })

  test('only text that could become a stop string is held back', () => {
    const { growth } = feed([...'ab\n\nUs\n\nUsx'].map(utf8), ['\n\nUser:'])
    expect(growth).toEqual([
      'a',
      'ab',
      'ab',
      'ab',
      'ab',
      'ab',
      'ab\n\nUs',
      'ab\n\nUs',
      'ab\n\nUs',
      'ab\n\nUs',
      'ab\n\nUs\n\nUsx',
      'ab\n\nUs\n\nUsx',
    ])
  })

  test('a token appears with its first character and disappears with a swallowed one', () => {
    const pieces = ['x', 'aS', 'T', 'OP', 'y'].map(utf8)
    expect(feed(pieces, ['STOP'])).toMatchObject({ text: 'xa', tokens: [1, 2], matched: 'STOP' })
  })

  test('the cost per character does not grow with the length of a partial match', () => {
    const stop = 'a'.repeat(20_000)
    const text = new Uint8Array(400_000).fill(0x61, 0, 19_999)
    text.fill(0x62, 19_999)
    const { matched } = feed([text], [`${stop}c`])
    expect(matched).toBeNull()
    expect(feed([utf8('a'.repeat(19_999)), utf8('a')], [stop])).toMatchObject({ text: '', matched: stop })
  })
})

describe('UTF-8', () => {
  test.each(['é', '世', '🙂', '👩‍👩‍👧‍👦', '\uFEFFa'])('%s one byte a token shows only whole', (text) => {
    const { growth } = feed(
      [...utf8(text)].map((byte) => Uint8Array.of(byte)),
      [],
    )
    expect(growth.at(-1)).toBe(text)
    for (const part of growth) expect(part).not.toContain('\uFFFD')
  })

  test('an unfinished character at the end becomes one U+FFFD', () => {
    expect(feed([utf8('a'), Uint8Array.of(0xf0, 0x9f), Uint8Array.of(0x99)], [])).toMatchObject({
      text: 'a\uFFFD',
      tokens: [1, 2, 3],
    })
  })
})
