/** The router over scripted engines: who gets which request, what moves, what is tried again. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { type ErrorCode, SkeinError } from '../../src/errors.ts'
import { PrefixHomes, prefixPoints } from '../../src/gateway/prefix-homes.ts'
import { type RoutedReplica, RouteMemory, Router } from '../../src/gateway/router.ts'
import { SessionHomes } from '../../src/gateway/session-homes.ts'
import { answer, FakeEngineClient, type Script } from '../helpers/fake-engine.ts'

class FakeReplica implements RoutedReplica {
  readonly id: string
  readonly fake: FakeEngineClient
  numInFlight = 0
  numTaken = 0
  neverServed = false
  isReady = true
  isGone = false

  constructor(id: string, script?: Script) {
    this.id = id
    this.fake = new FakeEngineClient(script ?? ((request) => answer(request, id)))
  }

  get client() {
    return this.isReady && !this.isGone ? this.fake : null
  }

  get engine() {
    return this.isGone ? null : this.fake
  }

  get state() {
    return this.client === null ? 'restarting' : 'ready'
  }

  get reason() {
    return this.client === null ? 'started again' : null
  }
}

let numRequests = 0

function request(fields: Partial<GenerateRequest> = {}): GenerateRequest {
  numRequests++
  const base = {
    id: `r${numRequests}`,
    prompt: Int32Array.from({ length: 40 }, (_, i) => numRequests * 100 + i),
    n: 1,
    maxTokens: 4,
    logprobs: null,
    promptLogprobs: null,
  }
  // What the fakes look at; sampling and stops are not among it.
  return { ...base, ...fields } as GenerateRequest
}

const inSession = (id: string, tenant = 't') =>
  request({ tenant, session: { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } })

function fleetOf(...names: string[]) {
  const replicas = names.map((name) => new FakeReplica(name))
  const memory = new RouteMemory()
  const router = new Router(() => replicas, memory)
  const [a, b, c] = replicas as [FakeReplica, FakeReplica, FakeReplica]
  return { router, memory, replicas, a, b, c }
}

async function run(router: Router, of: GenerateRequest): Promise<EngineEvent[]> {
  const events: EngineEvent[] = []
  for await (const event of router.generate(of)) events.push(event)
  return events
}

/** Fails before its first event. */
function failing(code: ErrorCode, before = () => {}): Script {
  return () => {
    before()
    throw new SkeinError(code, 'failed')
  }
}

/** The worker that answered. */
async function routeOf(router: Router, of: GenerateRequest): Promise<string | undefined> {
  const [first] = await run(router, of)
  return first?.type === 'prompt' ? first.worker : undefined
}

describe('without affinity', () => {
  test('the least busy one, in turns where several are', async () => {
    const { router, a, b, c } = fleetOf('a', 'b', 'c')
    a.numInFlight = 5
    const routes = await Promise.all([1, 2, 3, 4].map(() => routeOf(router, request())))
    expect(routes.sort()).toEqual(['b', 'b', 'c', 'c'])
    expect([a.numInFlight, b.numInFlight, c.numInFlight]).toEqual([5, 0, 0])
  })

  test('a request begins at once, before anybody looks at its events', () => {
    const { router, a } = fleetOf('a')
    router.generate(request())
    expect(a.numInFlight).toBe(1)
  })

  test('one that is not ready gets nothing; without any there is an error', async () => {
    const { router, a, b } = fleetOf('a', 'b')
    a.isReady = false
    expect(await routeOf(router, request())).toBe('b')
    b.isReady = false
    expect(router.client).toBeNull()
    expect(router.state).toBe('restarting')
    expect(router.reason).toBe('started again')
    await expect(run(router, request())).rejects.toMatchObject({ code: 'model_not_loaded' })
  })

  test('leaving the loop ends the request and its count', async () => {
    const { router, a } = fleetOf('a')
    for await (const _event of router.generate(request())) break
    expect(a.numInFlight).toBe(0)
    expect(a.fake.cancelled).toHaveLength(1)
  })

  test('figures are of all together', () => {
    const { router } = fleetOf('a', 'b')
    expect(router.info.numSlots).toBe(32)
    expect(router.stats).toMatchObject({ running: 4, waiting: 6, numSlots: 32, steps: 20 })
  })
})

describe('prefixes', () => {
  const system = Int32Array.from({ length: 64 }, (_, i) => i)
  const chat = (turn: number) =>
    request({
      prompt: Int32Array.from([...system, ...Array.from({ length: 20 }, (_, i) => turn * 50 + i)]),
      boundaries: Int32Array.of(64),
    })

  test('go where they were read, within the slack', async () => {
    const { router, replicas, memory } = fleetOf('a', 'b', 'c')
    const first = await routeOf(router, chat(1))
    const home = replicas.find(({ id }) => id === first)!
    home.numInFlight = 4
    expect(await routeOf(router, chat(2))).toBe(first)
    home.numInFlight = 5
    const other = await routeOf(router, chat(3))
    expect(other).not.toBe(first)
    expect(memory.counts).toMatchObject({ prefixHits: 1, prefixSpills: 1 })
    // The other one has it now, too.
    expect(await routeOf(router, chat(4))).toBe(other)
    home.numInFlight = 0
    replicas.find(({ id }) => id === other)!.numInFlight = 9
    expect(await routeOf(router, chat(5))).toBe(first)
  })

  test('of other tenants and start states do not count, nor what is not to be stored', () => {
    const points = (fields: Partial<GenerateRequest>) =>
      prefixPoints(request({ prompt: system, ...fields }))
    expect(points({ tenant: 'x' })).toEqual(points({ tenant: 'x' }))
    expect(points({ tenant: 'x' })).not.toEqual(points({ tenant: 'y' }))
    expect(points({ startState: 's' })).not.toEqual(points({}))
    const { router, memory } = fleetOf('a', 'b')
    router.generate(request({ prompt: system, cache: 'no-store' }))
    expect(memory.prefixes.size).toBe(0)
  })

  test('points of equal prefixes are equal, of others not', () => {
    const tokens = fc.array(fc.integer({ min: 0, max: 65_535 }), { minLength: 20, maxLength: 60 })
    fc.assert(
      fc.property(tokens, tokens, fc.integer({ min: 16, max: 20 }), (one, two, shared) => {
        const of = (rest: readonly number[]) =>
          prefixPoints(
            request({
              prompt: Int32Array.from([...one.slice(0, shared), ...rest]),
              boundaries: Int32Array.of(shared),
            }),
          )
        const [x, y] = [of(two), of([...two, 7])]
        expect(x[0]).toBe(y[0])
        expect(x.at(-1)).not.toBe(y.at(-1))
      }),
      { seed: 6 },
    )
  })

  test('memory is bounded, and a worker that ends is forgotten', () => {
    const homes = new PrefixHomes()
    for (let i = 0; i < 70_000; i++) homes.note([i], i % 2 ? 'odd' : 'even')
    expect(homes.size).toBe(65_536)
    expect(homes.find([69_999])).toEqual(['odd'])
    expect(homes.find([0])).toEqual([])
    homes.forget('odd')
    expect(homes.find([69_999])).toEqual([])
    expect(homes.size).toBe(32_768)
  })
})

test('the slack is what chance makes of the load', async () => {
  const { router, replicas } = fleetOf('a', 'b')
  const first = await routeOf(router, inSession('s'))
  const [home, other] = first === 'a' ? replicas : [...replicas].reverse()
  for (const [least, most] of [
    [0, 4],
    [8, 14],
    [32, 43],
    [100, 118],
  ]) {
    other!.numInFlight = least!
    home!.numInFlight = most!
    expect(await routeOf(router, inSession('s'))).toBe(home!.id)
  }
  home!.numInFlight++
  expect(await routeOf(router, inSession('s'))).toBe(other!.id)
})

test('a worker that has lately had more than its part gives one session away, and is looked at anew', async () => {
  const { router, a, b, memory } = fleetOf('a', 'b')
  b.isReady = false
  const hot = inSession('hot')
  await routeOf(router, hot)
  await routeOf(router, inSession('cold'))
  b.isReady = true
  // With nothing in flight each time.
  const routes: (string | undefined)[] = []
  for (let i = 0; i < 8; i++) routes.push(await routeOf(router, inSession('hot')))
  expect(routes.join('')).toBe('aaaaaaab')
  expect(Math.abs(a.numTaken - b.numTaken)).toBeLessThan(2)
  expect(await routeOf(router, inSession('cold'))).toBe('a')
  expect(memory.counts).toMatchObject({ sessionHits: 8, sessionSpills: 1 })
})

describe('sessions', () => {
  test('stay on their worker, and move through the store when it is too busy', async () => {
    const { router, replicas, memory } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const [home, other] = first === 'a' ? replicas : [...replicas].reverse()
    home!.numInFlight = 4
    expect(await routeOf(router, inSession('s'))).toBe(first)
    home!.numInFlight = 5
    expect(await routeOf(router, inSession('s'))).toBe(other!.id)
    expect(home!.fake.calls).toEqual([
      { method: 'sessions.release', params: { tenant: 't', id: 's' } },
    ])
    home!.numInFlight = 0
    // It is not brought back for nothing.
    expect(await routeOf(router, inSession('s'))).toBe(other!.id)
    expect(memory.counts).toMatchObject({ sessionHits: 2, sessionSpills: 1 })
  })

  test('of several that move at once each sees where the others are going', async () => {
    const { router, replicas, a, b, c } = fleetOf('a', 'b', 'c')
    b.isReady = c.isReady = false
    await routeOf(router, inSession('s'))
    await routeOf(router, inSession('u'))
    b.isReady = c.isReady = true
    a.numInFlight = 5
    const released: (() => void)[] = []
    a.fake.answerCall = () => new Promise<null>((resolve) => released.push(() => resolve(null)))
    const routes = Promise.all(['s', 'u'].map((id) => routeOf(router, inSession(id))))
    await expect.poll(() => released.length).toBe(2)
    for (const release of released) release()
    expect((await routes).sort()).toEqual(['b', 'c'])
    expect(replicas.map(({ numInFlight }) => numInFlight)).toEqual([5, 0, 0])
  })

  test('one that is in use does not move, however busy its worker is', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const home = replicas.find(({ id }) => id === first)!
    const releases: (() => void)[] = []
    home.fake.script = async function* (of) {
      yield { type: 'prompt', id: of.id, logprobs: null }
      await new Promise<void>((resolve) => releases.push(resolve))
    }
    const running = run(router, inSession('s'))
    await expect.poll(() => home.numInFlight).toBe(1)
    home.numInFlight += 50
    const second = run(router, inSession('s'))
    await expect.poll(() => releases.length).toBe(2)
    for (const release of releases) release()
    await Promise.all([running, second])
    expect(home.fake.calls).toEqual([])
  })

  test('where there is no store they stay', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    for (const { fake } of replicas)
      fake.answerCall = () => {
        throw new SkeinError('state_unavailable', 'no store')
      }
    const first = await routeOf(router, inSession('s'))
    replicas.find(({ id }) => id === first)!.numInFlight = 9
    expect(await routeOf(router, inSession('s'))).toBe(first)
  })

  test('a worker that ends gives them up; of a dead one they come from the store', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const home = replicas.find(({ id }) => id === first)!
    home.isReady = false
    expect(await routeOf(router, inSession('s'))).not.toBe(first)
    expect(home.fake.calls).toHaveLength(1)

    const { router: next, replicas: others } = fleetOf('a', 'b')
    const at = await routeOf(next, inSession('s'))
    const dead = others.find(({ id }) => id === at)!
    dead.isGone = true
    expect(await routeOf(next, inSession('s'))).not.toBe(at)
    expect(dead.fake.calls).toEqual([])
  })

  test('a busy one on a worker that ends is waited for', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const home = replicas.find(({ id }) => id === first)!
    home.isReady = false
    let numRefused = 0
    home.fake.answerCall = () => {
      numRefused++
      if (numRefused < 3) throw new SkeinError('conflict', 'busy')
      return null
    }
    expect(await routeOf(router, inSession('s'))).not.toBe(first)
    expect(numRefused).toBe(3)
  })

  test('calls go where the session is, a fork stays there, lists are put together', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const home = replicas.find(({ id }) => id === first)!
    const other = replicas.find(({ id }) => id !== first)!
    home.numInFlight = 50
    await router.call('sessions.get', { tenant: 't', id: 's' })
    await router.call('sessions.fork', { tenant: 't', id: 's', newId: 'u' })
    await router.call('sessions.rewind', { tenant: 't', id: 'u', turn: 'undo' })
    expect(home.fake.calls.map(({ method }) => method)).toEqual([
      'sessions.get',
      'sessions.fork',
      'sessions.rewind',
    ])
    expect(other.fake.calls).toEqual([])

    const row = (id: string, version: number, updatedAt: number) => ({ id, version, updatedAt })
    home.fake.answerCall = () => [row('s', 3, 30), row('u', 1, 10)]
    other.fake.answerCall = () => [row('s', 2, 20), row('w', 1, 25)]
    const list = (fields = {}) => router.call('sessions.list', { tenant: 't', ...fields })
    expect((await list()).map(({ id, version }) => [id, version])).toEqual([
      ['s', 3],
      ['w', 1],
      ['u', 1],
    ])
    expect((await list({ limit: 1, after: 's' })).map(({ id }) => id)).toEqual(['w'])
  })

  test('a deleted one is known to nobody', async () => {
    const { router, replicas, memory } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    await router.call('sessions.delete', { tenant: 't', id: 's' })
    const other = replicas.find(({ id }) => id !== first)!
    expect(other.fake.calls.map(({ method }) => method)).toEqual(['sessions.release'])
    expect(memory.sessions.size).toBe(0)
  })

  test('a router to one worker brings them there', async () => {
    const { router, memory, replicas } = fleetOf('a', 'b')
    const first = await routeOf(router, inSession('s'))
    const other = replicas.find(({ id }) => id !== first)!
    const direct = new Router(() => [other], memory)
    expect(await routeOf(direct, inSession('s'))).toBe(other.id)
    expect(await routeOf(router, inSession('s'))).toBe(other.id)
  })

  test('never two workers hold one, whatever comes at once', async () => {
    const { router, replicas } = fleetOf('a', 'b', 'c')
    const holders = new Set<string>()
    let most = 0
    for (const replica of replicas) {
      replica.fake.script = async function* (of) {
        holders.add(replica.id)
        most = Math.max(most, holders.size)
        yield { type: 'prompt', id: of.id, logprobs: null }
        await new Promise((resolve) => setImmediate(resolve))
      }
      replica.fake.answerCall = () => {
        holders.delete(replica.id)
        return null
      }
    }
    for (let round = 0; round < 50; round++) {
      for (const [i, replica] of replicas.entries()) replica.numInFlight = (round * (i + 3)) % 7
      await Promise.all([1, 2, 3].map(() => run(router, inSession('s'))))
    }
    expect(most).toBe(1)
  })

  test('the number of known ones is bounded; one that is forgotten is in the store', () => {
    const homes = new SessionHomes()
    const replica = new FakeReplica('a')
    for (let i = 0; i < 100_001; i++) homes.of({ tenant: 't', id: `s${i}` }).worker = replica
    expect(homes.size).toBe(100_000)
    expect(replica.fake.calls).toEqual([
      { method: 'sessions.release', params: { tenant: 't', id: 's0' } },
    ])
  })
})

describe('again', () => {
  const dies = failing('model_not_loaded')

  test('a request that has not begun goes to another worker, once', async () => {
    const { router, a, b, memory } = fleetOf('a', 'b')
    b.numInFlight = 1
    a.fake.script = dies
    expect(await routeOf(router, request())).toBe('b')
    expect(memory.counts.retries).toBe(1)
    b.fake.script = dies
    await expect(run(router, request())).rejects.toMatchObject({ code: 'model_not_loaded' })
    expect(memory.counts.retries).toBe(2)
    expect([a.numInFlight, b.numInFlight]).toEqual([0, 1])
  })

  test('it waits for its own worker to be back where there is no other', async () => {
    const { router, a } = fleetOf('a')
    a.fake.script = failing('model_not_loaded', () => {
      a.isReady = false
      a.fake.script = (of) => answer(of, 'back')
      setTimeout(() => {
        a.isReady = true
      }, 60)
    })
    expect(await routeOf(router, request())).toBe('a')
  })

  test('not one that has begun, nor one that was wrong', async () => {
    const { router, a, b } = fleetOf('a', 'b')
    b.numInFlight = 1
    a.fake.script = async function* (of) {
      yield { type: 'prompt', id: of.id, logprobs: null }
      throw new SkeinError('model_not_loaded', 'the worker process ended')
    }
    await expect(run(router, request())).rejects.toMatchObject({ code: 'model_not_loaded' })
    a.fake.script = failing('too_large')
    await expect(run(router, request())).rejects.toMatchObject({ code: 'too_large' })
    expect(b.fake.requests).toEqual([])
  })

  test('a full line is no end while another worker has room', async () => {
    const { router, a, b } = fleetOf('a', 'b')
    b.numInFlight = 1
    const full = failing('queue_full')
    a.fake.script = full
    expect(await routeOf(router, request())).toBe('b')
    b.fake.script = full
    await expect(run(router, request())).rejects.toMatchObject({ code: 'queue_full' })
  })

  test('nobody waits for a request that was cancelled', async () => {
    const { router, a } = fleetOf('a')
    a.fake.script = failing('model_not_loaded', () => {
      a.isReady = false
    })
    const controller = new AbortController()
    const events = router.generate(request(), controller.signal)
    setTimeout(() => controller.abort(), 20)
    const consume = async () => {
      for await (const _event of events);
    }
    await expect(consume()).rejects.toMatchObject({ code: 'aborted' })
  })
})

test.each([2, 8])(
  'eight workers with %i requests each, sessions of very unequal use, one dies and comes back',
  async (each) => {
    const { router, replicas, memory } = fleetOf(...'abcdefgh')
    const served = new Map<string, number>()
    for (const replica of replicas) {
      replica.fake.script = async function* (of) {
        served.set(replica.id, (served.get(replica.id) ?? 0) + 1)
        yield { type: 'prompt', id: of.id, logprobs: null }
        await new Promise((resolve) => setTimeout(resolve, 2))
      }
    }
    // Session k is used as often as 1/k says (Zipf).
    const random = generator(25)
    const weights = Array.from({ length: 2000 }, (_, k) => 1 / (k + 1))
    const total = weights.reduce((sum, weight) => sum + weight, 0)
    const draw = () => {
      let left = random() * total
      return weights.findIndex((weight) => {
        left -= weight
        return left <= 0
      })
    }
    let numLeft = 8000
    const busy = new Set<number>()
    const client = async () => {
      while (numLeft-- > 0) {
        const session = draw()
        // A person waits for the answer before the next question.
        if (busy.has(session)) continue
        busy.add(session)
        await run(router, inSession(`s${session}`))
        busy.delete(session)
        if (numLeft === 4000) replicas[3]!.isGone = true
        if (numLeft === 3500) replicas[3]!.isGone = false
      }
    }
    await Promise.all(Array.from({ length: 8 * each }, client))
    const counts = replicas.filter((_, i) => i !== 3).map(({ id }) => served.get(id)!)
    expect(Math.max(...counts) / Math.min(...counts)).toBeLessThan(1.3)
    const { sessionHits, sessionSpills } = memory.counts
    expect(sessionHits / (sessionHits + sessionSpills)).toBeGreaterThan(0.9)
  },
)

/** mulberry32 */
function generator(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}
