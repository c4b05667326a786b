/**
 * Text from tokens that are cut anywhere: the concatenated stream equals all bytes decoded at once, byte for byte, in
 * any script and wherever characters are cut.
 *
 * SKEIN_STREAMS sets the number of streams.
 */
import { expect, test } from 'vitest'
import { AnswerText } from '../../src/engine/answer/answer-text.ts'
import { StopStrings } from '../../src/engine/answer/stop-strings.ts'
import { randomOf } from '../helpers/random.ts'
import { trials } from '../helpers/slow.ts'

const NUM_STREAMS = Number(process.env.SKEIN_STREAMS ?? trials(1500, 5000))

const utf8 = (text: string) => new TextEncoder().encode(text)
const whole = new TextDecoder('utf-8', { ignoreBOM: true })

const PARTS = [
  '春眠不觉晓，处处闻啼鸟。',
  '吾輩は猫である。名前はまだ無い。ｶﾀｶﾅ',
  '나랏말싸미 듕귁에 달아',
  '👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️‍🔥',
  'e\u0301 n\u0303 \u200d\ufeff\u2028',
  'def f(x):\n\treturn x  # two  blanks\r\n',
  '{"a": "\\u00e9", "b": [1, 2]}\n\n',
  'مرحبا שלום नमस्ते ภาษาไทย',
  '𝔘𝔫𝔦 \u{10ffff} \ue000 \ufffd',
].map(utf8)
const EVERY_BYTE = Uint8Array.from({ length: 256 }, (_, i) => i)

// Neighbouring seeds begin far apart.
const random = (seed: number) => randomOf(Math.imul(seed, 0x9e3779b1))

/** Mostly text in some script; parts of characters; and bytes that are hardly ever characters. */
function bytesOf(pick: (below: number) => number): { bytes: Uint8Array; isText: boolean } {
  const isText = pick(4) > 0
  const parts = Array.from({ length: 1 + pick(4) }, () => {
    const part = pick(8) === 0 && !isText ? EVERY_BYTE : PARTS[pick(PARTS.length)]!
    return isText ? part : part.subarray(pick(part.length))
  })
  return { bytes: Uint8Array.from(parts.flatMap((part) => [...part])), isText }
}

/** Tokens of 1 to 9 bytes, some of none. */
function cut(bytes: Uint8Array, pick: (below: number) => number): Uint8Array[] {
  const tokens: Uint8Array[] = []
  const longest = 1 + pick(9)
  for (let at = 0; at < bytes.length; ) {
    const length = pick(20) === 0 ? 0 : 1 + pick(longest)
    tokens.push(bytes.subarray(at, at + length))
    at += length
  }
  return tokens
}

test(`${NUM_STREAMS} streams equal their text decoded at once`, () => {
  const seen = { texts: 0, cutCharacters: 0, damaged: 0 }
  for (let stream = 0; stream < NUM_STREAMS; stream++) {
    const pick = random(stream)
    const { bytes, isText } = bytesOf(pick)
    const expected = whole.decode(bytes)
    const tokens = cut(bytes, pick)
    const tokenBytes = { bytesOf: (token: number) => tokens[token - 1]! }
    const stops = pick(3) === 0 ? ['\u0000\u0001 never'] : []
    const answer = new AnswerText(tokenBytes, new StopStrings(stops), false)
    let text = ''
    const shown: number[] = []
    const take = () => {
      const released = answer.take()
      text += released?.text ?? ''
      shown.push(...(released?.tokens ?? []))
    }
    for (const i of tokens.keys()) {
      expect(answer.push(i + 1, null)).toBeNull()
      take()
      // Visible text is not taken back.
      if (!expected.startsWith(text)) expect([stream, text]).toEqual([stream, expected])
      if (isInside(tokens, i)) seen.cutCharacters++
    }
    expect(answer.end()).toBeNull()
    take()
    if (text !== expected) expect([stream, text]).toEqual([stream, expected])
    if (shown.length !== tokens.length) expect([stream, shown.length]).toEqual([stream, tokens.length])
    if (isText) {
      seen.texts++
      if (Buffer.compare(utf8(text), bytes) !== 0) expect(stream).toBe('equal to its bytes')
    } else if (text.includes('\ufffd')) seen.damaged++
  }
  for (const [what, count] of Object.entries(seen)) {
    expect([what, count > NUM_STREAMS / 20]).toEqual([what, true])
  }
}, 600_000)

/** Whether a character is cut after token i. */
function isInside(tokens: readonly Uint8Array[], i: number): boolean {
  const next = tokens.slice(i + 1).find(({ length }) => length > 0)
  return next !== undefined && (next[0]! & 0xc0) === 0x80
}
