import { expect, test } from 'vitest'
import type { EngineEvent } from '../../../src/engine/messages.ts'
import { type Ending, opened, Relay } from '../../../src/gateway/routing/relay.ts'

const prompt: EngineEvent = { type: 'prompt', id: 'r', logprobs: null }
const text: EngineEvent = { type: 'text', id: 'r', index: 0, text: 'a', tokens: [1], logprobs: null }

/** Events that wait until released, and know whether the reader left. */
function source(events: readonly EngineEvent[], fails: unknown = null) {
  const told = { wasLeft: false }
  async function* all(): AsyncGenerator<EngineEvent> {
    let isOver = false
    try {
      yield* events
      isOver = true
      if (fails !== null) throw fails
    } finally {
      told.wasLeft = !isOver
    }
  }
  return { told, events: all() }
}

function relay(open: () => ReturnType<typeof opened>, event: (one: EngineEvent) => EngineEvent = (one) => one) {
  const endings: Ending[] = []
  return { endings, relay: new Relay({ open, event, end: (ending) => endings.push(ending) }) }
}

async function collected(events: AsyncIterable<EngineEvent>): Promise<EngineEvent[]> {
  const all: EngineEvent[] = []
  for await (const event of events) all.push(event)
  return all
}

test('forwards all events and ends once, as done', async () => {
  const { relay: events, endings } = relay(() => opened(source([prompt, text]).events))
  expect(await collected(events)).toEqual([prompt, text])
  await events.return()
  expect(await events.next()).toEqual({ value: undefined, done: true })
  expect(endings).toEqual([{ how: 'done' }])
})

test('two reads before anything is there get the first two events', async () => {
  const { relay: events } = relay(() => opened(source([prompt, text]).events))
  const [one, two] = await Promise.all([events.next(), events.next()])
  expect([one.value, two.value]).toEqual([prompt, text])
})

test('a request that fails to open has not begun; a later failure has', async () => {
  const thrown = new Error('no')
  const early = relay(() => Promise.reject(thrown))
  await expect(collected(early.relay)).rejects.toBe(thrown)
  expect(early.endings).toEqual([{ how: 'failed', thrown, hasBegun: false }])
  const late = relay(() => opened(source([prompt], thrown).events))
  await expect(collected(late.relay)).rejects.toBe(thrown)
  expect(late.endings).toEqual([{ how: 'failed', thrown, hasBegun: true }])
})

test('leaving while it opens releases what arrives later', async () => {
  let open = () => {}
  const { told, events } = source([prompt, text])
  const gate = new Promise<void>((resolve) => (open = resolve))
  const { relay: left, endings } = relay(async () => {
    await gate
    return opened(events)
  })
  const pending = left.next()
  const leaving = left.return()
  expect(endings).toEqual([])
  open()
  await leaving
  expect(await pending).toEqual({ value: undefined, done: true })
  expect(told.wasLeft).toBe(true)
  expect(endings).toEqual([{ how: 'left' }])
})

test('a failing observer ends the request and releases the engine', async () => {
  const thrown = new Error('a label that there is not')
  const { told, events } = source([prompt, text, text])
  const { relay: failing, endings } = relay(
    () => opened(events),
    (event) => {
      if (event === text) throw thrown
      return event
    },
  )
  await expect(collected(failing)).rejects.toBe(thrown)
  expect(endings).toEqual([{ how: 'failed', thrown, hasBegun: true }])
  await new Promise((resolve) => setImmediate(resolve))
  expect(told.wasLeft).toBe(true)
})
