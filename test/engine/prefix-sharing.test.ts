/** Prefixes of other workers: when one is fetched, when one is published, and that answers stay the same. */
import { setTimeout as delay } from 'node:timers/promises'
import { expect, onTestFinished, test, vi } from 'vitest'
import { PrefixSharing } from '../../src/engine/kept/prefix-sharing.ts'
import { PrefixCache } from '../../src/state/prefix-cache.ts'
import type { Snapshot } from '../../src/state/snapshot.ts'
import type { PrefixStore, SharedPrefix, Store } from '../../src/state/store/store.ts'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { stateAfter } from '../helpers/fake-runner.ts'
import { promptOf, requestOf, soloAnswer, V } from './kit.ts'
import { IDENTITY, settle, setUp, turnOf } from './session-kit.ts'

/** Everything that all workers of a test have published, by namespace. */
class Shelf implements PrefixStore {
  readonly published: SharedPrefix[] = []
  readonly asked: { minTokens: number }[] = []
  readonly removed: Int32Array[] = []
  answer: () => Promise<void> = async () => {}

  async find(namespace: string, prompt: Int32Array, minTokens: number): Promise<Snapshot | null> {
    this.asked.push({ minTokens })
    await this.answer()
    const [found] = this.published
      .filter((one) => one.namespace === namespace && one.tokens.length >= minTokens)
      .filter(({ tokens }) => tokens.length < prompt.length)
      .filter(({ tokens }) => tokens.every((token, i) => token === prompt[i]))
      .sort((a, b) => b.tokens.length - a.tokens.length)
    if (found === undefined) return null
    const { tokens, floats } = structuredClone(found)
    return { tokens, tail: new Int32Array(0), state: floats }
  }

  async publish(prefix: SharedPrefix): Promise<void> {
    await this.answer()
    this.published.push(structuredClone(prefix))
  }

  async remove(_: string, tokens: Int32Array): Promise<void> {
    this.removed.push(tokens)
  }
}

const SECRET = new Uint8Array(32).fill(7)

/** An engine whose store has the same secret as all others. */
function workerOf(prefixes: PrefixStore) {
  const own = openDirectStore(newFolder(), IDENTITY)
  return setUp({ states: { store: { ...own, prefixes, secret: SECRET } } })
}

const worker = (prefixes: PrefixStore) => workerOf(prefixes).engine

/** A conversation after a common prefix of 100 tokens, which is read too fast to measure the speed. */
function chat(seed: number, parts: Parameters<typeof requestOf>[0] = {}) {
  const prompt = Int32Array.of(...promptOf(100), seed % V, ...promptOf(30, seed + 5))
  const boundaries = Int32Array.of(100)
  return requestOf({ prompt, boundaries, maxTokens: 3, id: `r${seed}`, ...parts })
}

type Engine = ReturnType<typeof worker>

async function ask(engine: Engine, request: ReturnType<typeof chat>): Promise<number> {
  engine.submit(request)
  const collected = await settle(engine)
  expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  const prompt = collected.of(request.id).find(({ type }) => type === 'prompt')
  return prompt?.type === 'prompt' ? (prompt.cachedTokens ?? 0) : -1
}

test('another worker need not read what three requests have in common', async () => {
  const shelf = new Shelf()
  const [one, two] = [worker(shelf), worker(shelf)]
  expect([await ask(one, chat(1)), await ask(one, chat(2))]).toEqual([0, 100])
  expect(shelf.published).toEqual([])
  for (const seed of [3, 4, 5]) expect(await ask(one, chat(seed))).toBe(100)
  expect(shelf.published).toHaveLength(1)
  expect(shelf.published[0]).toMatchObject({ tokens: promptOf(100) })
  expect(shelf.published[0]!.floats).toEqual(stateAfter(promptOf(100), 1))
  expect(one.stats.states).toMatchObject({ prefixesPublished: 1, prefixFetches: 0 })
  for (const seed of [6, 7, 8, 9]) expect(await ask(two, chat(seed))).toBe(100)
  // It was fetched once, and is not published again.
  expect(two.stats.states).toMatchObject({ prefixesPublished: 0, prefixFetches: 1 })
  expect(shelf.published).toHaveLength(1)
})

test('the first turn of a session begins with a shared prefix, and later turns do not ask', async () => {
  const shelf = new Shelf()
  const [one, two] = [worker(shelf), worker(shelf)]
  for (const seed of [1, 2, 3]) await ask(one, chat(seed))
  const { prompt } = chat(4)
  const first = turnOf({ id: 'a', prompt, maxTokens: 3 })
  expect(await ask(two, first)).toBe(100)
  const numAsked = shelf.asked.length
  two.submit(turnOf({ id: 'b', prompt: promptOf(90, 3), maxTokens: 3 }))
  await settle(two)
  expect(shelf.asked).toHaveLength(numAsked)
})

test('no prefix of others, none of a start state, none if nothing may be kept', async () => {
  const shelf = new Shelf()
  const [one, two] = [worker(shelf), worker(shelf)]
  for (const engine of [one, two]) engine.startStates.add('tuned', stateAfter(promptOf(3), 1))
  for (const seed of [1, 2, 3]) await ask(one, chat(seed))
  expect(await ask(two, chat(4, { tenant: 'other' }))).toBe(0)
  const numAsked = shelf.asked.length
  const asking = [{ startState: 'tuned' }, { cache: 'no-store' as const }, { promptLogprobs: 0 }]
  for (const [i, parts] of asking.entries()) {
    two.submit(chat(5 + i, parts))
    await settle(two)
  }
  expect(shelf.asked).toHaveLength(numAsked)
  for (const seed of [10, 11, 12, 13]) one.submit(chat(seed, { startState: 'tuned' }))
  await settle(one)
  expect(shelf.published).toHaveLength(1)
})

test('a prefix that proves wrong is taken from other workers too', async () => {
  const shelf = new Shelf()
  const one = worker(shelf)
  const { engine: two, runner } = workerOf(shelf)
  for (const seed of [1, 2, 3]) await ask(one, chat(seed))
  for (let slot = 0; slot < two.info.numSlots; slot++) runner.notFinite.add(slot)
  const request = chat(4)
  two.submit(request)
  const collected = await settle(two)
  expect(collected.of(request.id).at(-1)).toMatchObject({ type: 'error' })
  await vi.waitFor(() => expect(shelf.removed).toEqual([promptOf(100)]))
})

test('a request that is cancelled while it waits for a prefix does not start', async () => {
  const shelf = new Shelf()
  const engine = worker(shelf)
  let go = () => {}
  shelf.answer = () => new Promise((resolve) => (go = resolve))
  engine.submit(chat(1))
  expect([engine.hasWork, engine.isIdle]).toEqual([false, false])
  engine.cancel('r1')
  go()
  await settle(engine)
  expect(engine.stats).toMatchObject({ aborted: 1, promptTokens: 0 })
})

// --- the rules alone ---------------------------------------------------------------------------------------------------

/** The expected time for a state of 34 MB is 100 ms. */
function rules(shelf: Shelf, bytes = 34.6e6) {
  const cache = new PrefixCache(2 ** 30)
  const sharing = new PrefixSharing({ prefixes: shelf } as unknown as Store, cache, bytes)
  const add = (length: number) => cache.add('n', promptOf(length), stateAfter(promptOf(4), 1))
  return { cache, sharing, add }
}

test('a fast reader fetches only long prefixes, a slow one also short ones', () => {
  const shelf = new Shelf()
  const leastOf = (tokensPerSecond: number, bytes: number) => {
    const { sharing } = rules(shelf, bytes)
    sharing.learn(4000, 4_000_000 / tokensPerSecond)
    shelf.asked.length = 0
    void sharing.coming('n', promptOf(20_000))
    return shelf.asked[0]?.minTokens
  }
  // 1.5 times the expected time of a fetch.
  expect(leastOf(42_000, 34.6e6)).toBe(6298)
  expect(leastOf(4000, 34.6e6)).toBe(600)
  expect(leastOf(322, 6.5e6)).toBe(32)
  const { sharing, add } = rules(shelf)
  sharing.learn(4000, 1000)
  expect(sharing.coming('n', promptOf(601))).not.toBeNull()
  expect(sharing.coming('n', promptOf(600))).toBeNull()
  // A prefix in the own cache is not read.
  add(300)
  expect(sharing.coming('n', promptOf(900))).toBeNull()
  expect(sharing.coming('n', promptOf(901))).not.toBeNull()
})

test('a short prompt that was read at once is no evidence', () => {
  const { sharing } = rules(new Shelf())
  for (let i = 0; i < 100; i++) sharing.learn(40, 1)
  expect(sharing.coming('n', promptOf(200))).not.toBeNull()
  sharing.learn(300, 1)
  expect(sharing.coming('n', promptOf(200))).toBeNull()
})

test('many prompts with the same beginning wait for one fetch, and not longer than reading takes', async () => {
  const shelf = new Shelf()
  const { sharing, cache } = rules(shelf)
  let go = () => {}
  shelf.answer = () => new Promise((resolve) => (go = resolve))
  sharing.learn(4000, 1000)
  shelf.published.push({ namespace: 'n', tokens: promptOf(700), floats: stateAfter(promptOf(4), 1) })
  const began = performance.now()
  const all = [800, 900, 1000].map((length) => sharing.coming('n', promptOf(length)))
  expect(shelf.asked).toHaveLength(1)
  await all[0]
  expect(performance.now() - began).toBeGreaterThan(150)
  expect(cache.count).toBe(0)
  // Later requests get it anyway.
  go()
  await vi.waitFor(() => expect(cache.lengthOf('n', promptOf(800), 799)).toBe(700))
  await Promise.all(all)
})

test('after slow fetches only longer prefixes are fetched; that wears off', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  onTestFinished(() => void vi.useRealTimers())
  const shelf = new Shelf()
  const { sharing, cache } = rules(shelf)
  sharing.learn(4000, 1000)
  shelf.published.push({ namespace: 'n', tokens: promptOf(700), floats: stateAfter(promptOf(4), 1) })
  shelf.answer = async () => void vi.advanceTimersByTime(1000)
  await sharing.coming('n', promptOf(800))
  cache.delete(cache.find('n', promptOf(800), 799)!)
  expect(sharing.coming('n', promptOf(800))).toBeNull()
  vi.advanceTimersByTime(3_600_000)
  expect(sharing.coming('n', promptOf(800))).not.toBeNull()
})

test('after a failure nothing is fetched for a while', async () => {
  const shelf = new Shelf()
  const { sharing, add } = rules(shelf)
  shelf.answer = () => Promise.reject(new Error('no database'))
  await sharing.coming('n', promptOf(800))
  expect(sharing.coming('n', promptOf(800))).toBeNull()
  const prefix = add(700)
  prefix.numFound = 5
  sharing.used(prefix)
  await delay(0)
  expect([shelf.asked.length, prefix.toldAt]).toEqual([1, null])
})

test('a prefix that is read as fast as it could be fetched is not published', async () => {
  const shelf = new Shelf()
  const { sharing, add } = rules(shelf)
  sharing.learn(4000, 1000)
  for (const length of [500, 700]) {
    const prefix = add(length)
    prefix.numFound = 2
    sharing.used(prefix)
    sharing.used(prefix)
    await delay(0)
  }
  expect(shelf.published.map(({ tokens }) => tokens.length)).toEqual([700])
})
