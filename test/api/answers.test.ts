import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { runAll } from '../../src/api/answers.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../../src/engine/messages.ts'
import { answer, FAKE_INFO, FakeEngineClient, type Script } from '../helpers/fake-engine.ts'

const request = (i: number, n = 1): GenerateRequest => ({
  id: `r${i}`,
  prompt: Int32Array.of(i + 1),
  n,
  maxTokens: 4,
  sampling: PLAIN_SAMPLING,
  stop: { strings: [], tokens: [], ignoreEos: false },
  logprobs: null,
  promptLogprobs: null,
})

/** An engine with room for some requests; another client holds `taken` of them for a while. */
function roomy(room: number, taken: () => number) {
  let live = 0
  let most = 0
  const script: Script = async function* (request) {
    if (live + taken() >= room) {
      yield { type: 'error', id: request.id, error: { code: 'queue_full', message: 'full' } }
      return
    }
    live++
    most = Math.max(most, live)
    try {
      await delay(1)
      yield* answer(request, 'ok')
    } finally {
      live--
    }
  }
  return { script, most: () => most }
}

async function finished(client: FakeEngineClient, requests: readonly GenerateRequest[]) {
  const prompts: number[] = []
  for await (const { prompt, event } of runAll(client, requests, new AbortController().signal)) {
    if (event.type === 'finish') prompts.push(prompt)
  }
  return prompts.sort((a, b) => a - b)
}

const LIST = Array.from({ length: 100 }, (_, i) => request(i))

test('a list longer than the queue is served, with all slots in use and no more', async () => {
  const engine = roomy(FAKE_INFO.numSlots, () => 0)
  const client = new FakeEngineClient(engine.script)
  expect(await finished(client, LIST)).toEqual(LIST.map((_, i) => i))
  expect(engine.most()).toBe(FAKE_INFO.numSlots)
})

test('n choices take n slots each', async () => {
  const engine = roomy(100, () => 0)
  const client = new FakeEngineClient(engine.script)
  await finished(
    client,
    LIST.map((_, i) => request(i, 4)),
  )
  expect(engine.most()).toBe(FAKE_INFO.numSlots / 4)
})

test('once admitted, the rest of a list waits for room; before that a full queue is reported at once', async () => {
  let taken = 0
  const engine = roomy(FAKE_INFO.numSlots, () => taken)
  const client = new FakeEngineClient(async function* (request, signal) {
    for await (const event of engine.script(request, signal)) {
      // Another client takes all the room as soon as we are admitted, for 120 ms.
      if (event.type === 'prompt' && request.id === 'r0') {
        taken = FAKE_INFO.numSlots
        setTimeout(() => {
          taken = 0
        }, 120)
      }
      yield event
    }
  })
  expect(await finished(client, LIST)).toHaveLength(LIST.length)
  expect(client.requests.length).toBeGreaterThan(LIST.length)

  taken = FAKE_INFO.numSlots
  await expect(finished(client, LIST)).rejects.toMatchObject({ code: 'queue_full' })
})

test('leaving early cancels running requests and starts no more', async () => {
  const client = new FakeEngineClient(async function* (request, signal) {
    yield { type: 'prompt', id: request.id, logprobs: null }
    await new Promise((resolve) => signal?.addEventListener('abort', resolve))
  })
  let seen = 0
  for await (const _ of runAll(client, LIST, new AbortController().signal)) {
    seen++
    if (seen === FAKE_INFO.numSlots) break
  }
  expect(client.requests).toHaveLength(FAKE_INFO.numSlots)
  expect(client.cancelled).toHaveLength(FAKE_INFO.numSlots)
})

test('the requests of a long list begin in several turns of the event loop', async () => {
  let turns = 0
  const begun: number[] = []
  const client = new FakeEngineClient((request) => {
    begun.push(turns)
    for (const end = performance.now() + 0.5; performance.now() < end; );
    return answer(request, 'ok')
  })
  const count = () => {
    turns++
    if (client.requests.length < FAKE_INFO.numSlots) setImmediate(count)
  }
  setImmediate(count)
  await finished(client, LIST.slice(0, FAKE_INFO.numSlots))
  expect(begun).toHaveLength(FAKE_INFO.numSlots)
  expect(new Set(begun).size).toBeGreaterThan(3)
})
