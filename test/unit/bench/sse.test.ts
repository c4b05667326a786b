import fc from 'fast-check'
import { expect, test } from 'vitest'
import { SseParser } from '../../../src/bench/serve/exchange.ts'

const STREAM = [
  '\uFEFF: a comment\n',
  'data: {"text":"héllo 你好 🙂"}\n\n',
  'event: other\r\nid: 3\r\ndata:no space\r\n\r\n',
  'data: two\ndata: lines\n\n',
  'data\n\n',
  ': only a comment\n\n',
  'data:  one space kept\r\r',
  'retry: 5\nnonsense\n\ndata: [DONE]',
].join('')

const EVENTS = ['{"text":"héllo 你好 🙂"}', 'no space', 'two\nlines', '', ' one space kept', '[DONE]']

function parse(pieces: readonly Uint8Array[]): string[] {
  const parser = new SseParser()
  return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()]
}

test('a stream in one piece', () => {
  expect(parse([Buffer.from(STREAM)])).toEqual(EVENTS)
})

test('a stream in single bytes', () => {
  expect(parse([...Buffer.from(STREAM)].map((byte) => Uint8Array.of(byte)))).toEqual(EVENTS)
})

test('a stream cut at any place', () => {
  const bytes = Buffer.from(STREAM)
  fc.assert(
    fc.property(fc.uniqueArray(fc.nat(bytes.length), { maxLength: 12 }), (cuts) => {
      const edges = [0, ...cuts.toSorted((a, b) => a - b), bytes.length]
      const pieces = edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge))
      expect(parse(pieces)).toEqual(EVENTS)
    }),
    { seed: 1 },
  )
})

test('an event is returned together with the bytes that complete it', () => {
  const parser = new SseParser()
  expect(parser.push(Buffer.from('data: a\n'))).toEqual([])
  expect(parser.push(Buffer.from('\ndata: b'))).toEqual(['a'])
  expect(parser.push(Buffer.from('c\n\n'))).toEqual(['bc'])
  expect(parser.end()).toEqual([])
})
