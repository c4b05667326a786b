/**
 * How evenly the router spreads sessions of very unequal use over simulated workers, and how many turns find their state in
 * place: R25 in virtual time. test/e2e/router.test.ts does the same with real workers.
 */
import { setImmediate } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { seededRandom } from '../../src/bench/serve/random.ts'
import { RouteMemory, Router } from '../../src/gateway/routing/router.ts'
import { answer } from '../helpers/fake-engine.ts'
import { FakeReplica, inSession, run } from './router-kit.ts'

const NUM_SESSIONS = 2000
const TURNS_OF_PHASE = 1500
const SEEDS = [1, 2, 3, 4, 5]
/** Milliseconds of a commit, which one worker at a time makes, and of each turn in it. */
const COMMIT = { each: 1.5, turn: 2 }

class Clock {
  #now = 0
  readonly #sleepers: { readonly at: number; readonly wake: () => void }[] = []

  sleep(ms: number): Promise<void> {
    return new Promise((wake) => this.#sleepers.push({ at: this.#now + ms, wake }))
  }

  /** Until nobody sleeps any more. */
  async run(): Promise<void> {
    for (;;) {
      await setImmediate()
      const next = this.#sleepers.sort((a, b) => a.at - b.at).shift()
      if (next === undefined) return
      this.#now = next.at
      next.wake()
    }
  }
}

/** Of all workers' commits; of those that wait any may be next. */
class StoreLock {
  readonly #waiting: (() => void)[] = []
  readonly #random: () => number
  #isHeld = false

  constructor(random: () => number) {
    this.#random = random
  }

  async take(): Promise<void> {
    if (this.#isHeld) await new Promise<void>((begin) => this.#waiting.push(begin))
    this.#isHeld = true
  }

  leave(): void {
    this.#isHeld = false
    const [next] = this.#waiting.splice(Math.floor(this.#random() * this.#waiting.length), 1)
    if (next === undefined) return
    this.#isHeld = true
    next()
  }
}

/** A worker's turns are in the store when they end: all that wait are one commit. */
function saverOf(lock: StoreLock, sleep: (ms: number) => Promise<void>): () => Promise<void> {
  let waiting: (() => void)[] = []
  let isRunning = false
  const run = async () => {
    for (isRunning = true; waiting.length > 0; ) {
      await lock.take()
      const turns = waiting
      waiting = []
      await sleep(COMMIT.each + COMMIT.turn * turns.length)
      lock.leave()
      for (const end of turns) end()
    }
    isRunning = false
  }
  return () =>
    new Promise((end) => {
      waiting.push(end)
      if (!isRunning) void run()
    })
}

/** Users who talk in sessions, session k with frequency 1/k, and none of them in two at once. */
async function talk(numUsers: number, seed: number) {
  const random = seededRandom(seed)
  const clock = new Clock()
  const homes = new Map<string, string>()
  const answers = new Map<string, number>()
  const lock = new StoreLock(random)
  const sleep = (ms: number) => clock.sleep(ms * (0.7 + 0.6 * random()))
  const worker = (name: string): FakeReplica => {
    const save = saverOf(lock, sleep)
    const replica: FakeReplica = new FakeReplica(name, async function* (request) {
      const { id } = request.session!
      const home = homes.get(id)
      homes.set(id, name)
      answers.set(name, (answers.get(name) ?? 0) + 1)
      // A new one is claimed, and one that comes from another worker.
      if (home !== name) await save()
      await sleep((4 + Math.floor(random() * 9)) * (1 + 0.3 * replica.numInFlight))
      await save()
      yield* answer(request, name)
    })
    return replica
  }
  const replicas = Array.from({ length: 8 }, (_, i) => worker(`w${i}`))
  const memory = new RouteMemory()
  const router = new Router(() => replicas, memory)
  const upTo: number[] = []
  for (let k = 1; k <= NUM_SESSIONS; k++) upTo.push((upTo.at(-1) ?? 0) + 1 / k)
  const busy = new Set<number>()
  const draw = (): number => {
    const at = random() * upTo.at(-1)!
    const session = upTo.findIndex((sum) => at <= sum)
    return busy.has(session) ? draw() : session
  }
  const phase = async (at = (_turns: number) => {}) => {
    answers.clear()
    const { sessionHits, sessionSpills } = memory.counts
    let begun = 0
    const user = async () => {
      while (begun < TURNS_OF_PHASE) {
        at(++begun)
        const session = draw()
        busy.add(session)
        await run(router, inSession(`s${session}`))
        busy.delete(session)
      }
    }
    const users = Array.from({ length: numUsers }, user)
    await clock.run()
    await Promise.all(users)
    const counts = [...answers.values()]
    const [hits, spills] = [memory.counts.sessionHits - sessionHits, memory.counts.sessionSpills - sessionSpills]
    return { unevenness: Math.max(...counts) / Math.min(...counts), inPlace: hits / (hits + spills) }
  }
  const first = await phase()
  const [, , , victim] = replicas
  const killed = await phase((turns) => {
    victim!.isReady = turns < 300 || turns >= 500
  })
  replicas.push(worker('w8'))
  return [first, killed, await phase()]
}

test.each([16, 64])('%i users over eight workers: a worker that is away, and a ninth', async (numUsers) => {
  const runs = await Promise.all(SEEDS.map((seed) => talk(numUsers, seed)))
  for (const [i, name] of ['first', 'away', 'ninth'].entries()) {
    const worst = Math.max(...runs.map((phases) => phases[i]!.unevenness))
    expect(worst, `${name}: busiest to least busy worker`).toBeLessThan(1.3)
    expect(Math.min(...runs.map((phases) => phases[i]!.inPlace)), `${name}: turns in place`).toBeGreaterThan(0.92)
  }
})
