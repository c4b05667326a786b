/** Events that differ in one text are written without making the object, with the same bytes. */
import { expect, test } from 'vitest'
import { NDJSON, SSE, writerOf } from '../../src/api/stream-form.ts'

test.each(['word', '', '"quoted" \\ and\nmore', '\u0000\u2028', '乌🙂', '\ud800', '$& $1'])(
  'an event with the text %j has the bytes of its object',
  (text) => {
    const make = (content: string) => ({
      id: 'a"b',
      choices: [{ index: 0, delta: { content }, reason: null }],
      usage: null,
    })
    const write = writerOf(make)
    for (const { frame } of [SSE, NDJSON]) expect(frame(write(text))).toBe(frame(make(text)))
  },
)
