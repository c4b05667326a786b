/** Sessions in the router: which worker has one, when it moves, and how evenly they are spread. */

import { describe, expect, test } from 'vitest'
import { seededRandom } from '../../src/bench/serve/random.ts'
import { SkeinError } from '../../src/errors.ts'
import { Router } from '../../src/gateway/routing/router.ts'
import { SessionAffinity } from '../../src/gateway/routing/session-affinity.ts'
import { FakeReplica, fleetOf, inSession, routeOf, run } from './router-kit.ts'

/** Two workers, of which `home` has the session "s". */
async function withSession() {
  const { router, replicas, memory } = fleetOf('a', 'b')
  const first = await routeOf(router, inSession('s'))
  const [home, other] = first === 'a' ? replicas : [...replicas].reverse()
  return { router, replicas, memory, first, home: home!, other: other! }
}

/** Its answers end when the functions returned, one for each, are called. */
function held({ fake }: FakeReplica): (() => void)[] {
  const releases: (() => void)[] = []
  fake.script = async function* (of) {
    yield { type: 'prompt', id: of.id, logprobs: null }
    await new Promise<void>((resolve) => releases.push(resolve))
  }
  return releases
}

describe('sessions', () => {
  test('stay on their worker, and move through the store if it is too busy', async () => {
    const { router, memory, first, home, other } = await withSession()
    home.numInFlight = 12
    expect(await routeOf(router, inSession('s'))).toBe(first)
    home.numInFlight = 13
    expect(await routeOf(router, inSession('s'))).toBe(other.id)
    expect(home.fake.calls).toEqual([{ method: 'sessions.release', params: { tenant: 't', id: 's' } }])
    home.numInFlight = 0
    // It does not move back without need.
    expect(await routeOf(router, inSession('s'))).toBe(other.id)
    expect(memory.counts).toMatchObject({ sessionHits: 2, sessionSpills: 1 })
  })

  test('several that move at once know where the others go', async () => {
    const { router, replicas, a, b, c } = fleetOf('a', 'b', 'c')
    b.isReady = c.isReady = false
    await routeOf(router, inSession('s'))
    await routeOf(router, inSession('u'))
    b.isReady = c.isReady = true
    a.numInFlight = 12
    const released: (() => void)[] = []
    a.fake.answerCall = () => new Promise<null>((resolve) => released.push(() => resolve(null)))
    const routes = Promise.all(['s', 'u'].map((id) => routeOf(router, inSession(id))))
    await expect.poll(() => released.length).toBe(2)
    for (const release of released) release()
    expect((await routes).sort()).toEqual(['b', 'c'])
    expect(replicas.map(({ numInFlight }) => numInFlight)).toEqual([12, 0, 0])
  })

  test('a session in use does not move, however busy its worker is', async () => {
    const { router, home } = await withSession()
    const releases = held(home)
    const running = run(router, inSession('s'))
    await expect.poll(() => home.numInFlight).toBe(1)
    home.numInFlight += 50
    const second = run(router, inSession('s'))
    await expect.poll(() => releases.length).toBe(2)
    for (const release of releases) release()
    await Promise.all([running, second])
    expect(home.fake.calls).toEqual([])
  })

  test('without a store they stay', async () => {
    const { router, replicas } = fleetOf('a', 'b')
    for (const { fake } of replicas)
      fake.answerCall = () => {
        throw new SkeinError('state_unavailable', 'no store')
      }
    const first = await routeOf(router, inSession('s'))
    replicas.find(({ id }) => id === first)!.numInFlight = 9
    expect(await routeOf(router, inSession('s'))).toBe(first)
  })

  test('a worker that stops releases its sessions; those of a dead one are read from the store', async () => {
    const { router, first, home } = await withSession()
    home.isReady = false
    expect(await routeOf(router, inSession('s'))).not.toBe(first)
    expect(home.fake.calls).toHaveLength(1)

    const { router: next, home: dead } = await withSession()
    dead.isGone = true
    expect(await routeOf(next, inSession('s'))).not.toBe(dead.id)
    expect(dead.fake.calls).toEqual([])
  })

  test('a request waits for a busy session on a worker that stops', async () => {
    const { router, first, home } = await withSession()
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

  test('requests go where the session is, a fork stays there, lists are merged', async () => {
    const { router, home, other } = await withSession()
    home.numInFlight = 50
    await router.call('sessions.get', { tenant: 't', id: 's' })
    await router.call('sessions.fork', { tenant: 't', id: 's', newId: 'u' })
    await router.call('sessions.rewind', { tenant: 't', id: 'u', turn: 'undo' })
    expect(home.fake.calls.map(({ method }) => method)).toEqual(['sessions.get', 'sessions.fork', 'sessions.rewind'])
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
    await expect(list({ after: 'x' })).rejects.toMatchObject({ code: 'not_found' })
  })

  test('a request for a fork that is being made goes where it will be', async () => {
    const { router, replicas, first, home, other } = await withSession()
    // The new name was used before, on the other worker.
    home.numInFlight = 3
    expect(await routeOf(router, inSession('u'))).toBe(other.id)
    home.fake.answerCall = async () => {
      expect(await routeOf(router, inSession('u'))).toBe(first)
      throw new SkeinError('conflict', 'it exists')
    }
    const forked = router.call('sessions.fork', { tenant: 't', id: 's', newId: 'u' })
    await expect(forked).rejects.toThrow('it exists')
    expect(other.fake.calls).toEqual([{ method: 'sessions.release', params: { tenant: 't', id: 'u' } }])
    // What existed of it has moved as well.
    expect(await routeOf(router, inSession('u'))).toBe(first)
    home.numInFlight = 0
    expect(replicas.map(({ numInFlight }) => numInFlight)).toEqual([0, 0])
  })

  test('a fork whose name is in use on another worker is refused, and moves no session', async () => {
    const { router, replicas, home, other } = await withSession()
    home.numInFlight = 3
    const releases = held(other)
    const running = run(router, inSession('u'))
    await expect.poll(() => releases.length).toBe(1)
    const forked = router.call('sessions.fork', { tenant: 't', id: 's', newId: 'u' })
    await expect(forked).rejects.toThrow('session u is in use')
    expect(home.fake.calls).toEqual([])
    const second = run(router, inSession('u'))
    await expect.poll(() => releases.length).toBe(2)
    for (const release of releases) release()
    await Promise.all([running, second])
    expect(replicas.map(({ numInFlight }) => numInFlight).sort()).toEqual([0, 3])
  })

  test('the other workers release a deleted session', async () => {
    const { router, other } = await withSession()
    await router.call('sessions.delete', { tenant: 't', id: 's' })
    expect(other.fake.calls.map(({ method }) => method)).toEqual(['sessions.release'])
  })

  test('a deleted session that a request waits for is created again there, and others find it', async () => {
    const { router, first, home } = await withSession()
    const { script } = home.fake
    const releases = held(home)
    const waiting = run(router, inSession('s'))
    await expect.poll(() => releases.length).toBe(1)
    // A session that was created and removed before the deletion is reported counts too.
    home.fake.answerCall = async () => {
      home.fake.script = script
      expect(await routeOf(router, inSession('s'))).toBe(first)
      return null
    }
    await router.call('sessions.delete', { tenant: 't', id: 's' })
    expect(await routeOf(router, inSession('s'))).toBe(first)
    releases[0]!()
    await waiting
    home.numInFlight = 1
    expect(await routeOf(router, inSession('s'))).toBe(first)
  })

  test('a router with one worker sends them there', async () => {
    const { router, memory, other } = await withSession()
    const direct = new Router(() => [other], memory)
    expect(await routeOf(direct, inSession('s'))).toBe(other.id)
    expect(await routeOf(router, inSession('s'))).toBe(other.id)
  })

  test('two workers never hold the same session, whatever comes at once', async () => {
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

  test('the number of known sessions is limited; a forgotten one is in the store', () => {
    const homes = new SessionAffinity()
    const replica = new FakeReplica('a')
    for (let i = 0; i < 100_001; i++) homes.of({ tenant: 't', id: `s${i}` }).worker = replica
    expect(homes.size).toBe(100_000)
    expect(replica.fake.calls).toEqual([{ method: 'sessions.release', params: { tenant: 't', id: 's0' } }])
  })
})

test.each([2, 8])(
  'eight workers with %i requests each, sessions of very unequal use; one worker dies and returns',
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
    // Session k is used with frequency 1/k (Zipf).
    const random = seededRandom(25)
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
        // A user waits for the answer before the next question.
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
