/** Texts for a slow consumer come out as they went in, and take the announced memory. */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { EventQueue } from '../../src/engine/client/event-queues.ts'
import type { EngineEvent } from '../../src/engine/messages.ts'

type TextEvent = EngineEvent & { readonly type: 'text' }

const token = fc.oneof(fc.nat(300), fc.nat(2 ** 31 - 1))
const logprob = fc.oneof(fc.double({ noNaN: true }), fc.constant(Number.NEGATIVE_INFINITY))
const bytes = fc.uint8Array({ maxLength: 200 })
const tokenText = fc
  .tuple(token, logprob, bytes, fc.array(fc.tuple(token, logprob, bytes), { maxLength: 20 }))
  .map(([own, value, ownBytes, all]) => ({
    token: own,
    logprob: value,
    bytes: ownBytes,
    top: all.map(([other, its]) => ({ token: other, logprob: its })),
    topBytes: all.map(([, , its]) => its),
  }))

/** Of two choices, with log-probabilities for all events or for none. */
const streams = fc.boolean().chain((hasLogprobs) =>
  fc.array(
    fc.record({
      type: fc.constant('text' as const),
      id: fc.constant('r'),
      index: fc.nat(1),
      text: fc.string({ unit: 'grapheme', maxLength: 300 }),
      tokens: fc.array(token, { maxLength: 5 }),
      logprobs: hasLogprobs ? fc.array(tokenText, { maxLength: 3 }) : fc.constant(null),
    }),
    { maxLength: 30 },
  ),
)

const plain = (value: Uint8Array) => [...value]

/** Everything of one choice, however it is divided into events. */
function merged(events: readonly TextEvent[], index: number) {
  const own = events.filter((event) => event.index === index)
  const logprobs = own.flatMap((event) => event.logprobs ?? [])
  return {
    text: own.map(({ text }) => text).join(''),
    tokens: own.flatMap(({ tokens }) => tokens),
    logprobs: logprobs.map(({ bytes: its, topBytes, ...rest }) => ({
      ...rest,
      bytes: plain(its),
      topBytes: topBytes.map(plain),
    })),
    isNull: own.map((event) => event.logprobs === null).at(0),
  }
}

test('texts come out in order, whenever they are read', async () => {
  await fc.assert(
    fc.asyncProperty(streams, fc.infiniteStream(fc.nat(3)), async (events, pauses) => {
      const queue = new EventQueue(200, () => {})
      const taken: TextEvent[] = []
      for (const event of events) {
        queue.push(event)
        if (pauses.next().value === 0) taken.push((await queue.next()).value)
      }
      const end = { type: 'finish', id: 'r', index: 0, reason: 'stop', matched: null } as const
      queue.push({ ...end, completionTokens: 1 })
      for (;;) {
        const { value } = await queue.next()
        if (value.type === 'finish') break
        taken.push(value)
      }
      for (const index of [0, 1]) expect(merged(taken, index)).toEqual(merged(events, index))
    }),
    { numRuns: 200 },
  )
})

test('a consumer that comes late gets small pieces', async () => {
  const queue = new EventQueue(1, () => {})
  const text = { type: 'text', id: 'r', index: 0, text: 'word', logprobs: null } as const
  for (let i = 0; i < 8000; i++) queue.push({ ...text, tokens: [i] })
  const tokens: number[] = []
  while (tokens.length < 8000) {
    const { value } = await queue.next()
    expect(value.text.length).toBeLessThanOrEqual(4096)
    tokens.push(...value.tokens)
  }
  expect(tokens).toEqual(Array.from({ length: 8000 }, (_, i) => i))
})
