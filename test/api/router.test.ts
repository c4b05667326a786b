/** The router with scripted engines: which worker gets a request, what moves, what is retried. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { PrefixHomes, prefixPoints } from '../../src/gateway/routing/prefix-affinity.ts'
import { answer } from '../helpers/fake-engine.ts'
import { failing, fleetOf, inSession, request, routeOf, run } from './router-kit.ts'

describe('without affinity', () => {
  test('the least busy worker, round robin among equals', async () => {
    const { router, a, b, c } = fleetOf('a', 'b', 'c')
    a.numInFlight = 5
    const routes = await Promise.all([1, 2, 3, 4].map(() => routeOf(router, request())))
    expect(routes.sort()).toEqual(['b', 'b', 'c', 'c'])
    expect([a.numInFlight, b.numInFlight, c.numInFlight]).toEqual([5, 0, 0])
  })

  test('a request starts at once, before its events are read', () => {
    const { router, a } = fleetOf('a')
    router.generate(request())
    expect(a.numInFlight).toBe(1)
  })

  test('a worker that is not ready gets nothing; without any worker there is an error', async () => {
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

  test('a request would be refused only if every worker that is ready would refuse it', () => {
    const { router, a, b } = fleetOf('a', 'b')
    const full = new SkeinError('queue_full', 'full')
    a.fake.refusal = full
    expect(router.refusalOf('t')).toBeNull()
    b.isReady = false
    expect(router.refusalOf('t')).toBe(full)
    b.isReady = true
    b.fake.refusal = full
    expect(router.refusalOf('t')).toBe(full)
  })

  test('figures are totals over all workers', () => {
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

  test('go to the worker that has read them, within the slack', async () => {
    const { router, replicas, memory } = fleetOf('a', 'b', 'c')
    const first = await routeOf(router, chat(1))
    const home = replicas.find(({ id }) => id === first)!
    home.numInFlight = 4
    expect(await routeOf(router, chat(2))).toBe(first)
    home.numInFlight = 5
    const other = await routeOf(router, chat(3))
    expect(other).not.toBe(first)
    expect(memory.counts).toMatchObject({ prefixHits: 1, prefixSpills: 1 })
    // Now the other worker has it, too.
    expect(await routeOf(router, chat(4))).toBe(other)
    home.numInFlight = 0
    replicas.find(({ id }) => id === other)!.numInFlight = 9
    expect(await routeOf(router, chat(5))).toBe(first)
  })

  test('those of other tenants and start states do not count, nor requests that store nothing', () => {
    const points = (fields: Partial<GenerateRequest>) => prefixPoints(request({ prompt: system, ...fields }))
    expect(points({ tenant: 'x' })).toEqual(points({ tenant: 'x' }))
    expect(points({ tenant: 'x' })).not.toEqual(points({ tenant: 'y' }))
    expect(points({ startState: 's' })).not.toEqual(points({}))
    const { router, memory } = fleetOf('a', 'b')
    router.generate(request({ prompt: system, cache: 'no-store' }))
    expect(memory.prefixes.size).toBe(0)
  })

  test('equal prefixes have equal hash points, others do not', () => {
    const tokens = fc.array(fc.integer({ min: 0, max: 65_535 }), { minLength: 20, maxLength: 60 })
    fc.assert(
      fc.property(tokens, tokens, fc.integer({ min: 16, max: 20 }), (one, two, shared) => {
        const of = (rest: readonly number[]) =>
          prefixPoints(
            request({ prompt: Int32Array.from([...one.slice(0, shared), ...rest]), boundaries: Int32Array.of(shared) }),
          )
        const [x, y] = [of(two), of([...two, 7])]
        expect(x[0]).toBe(y[0])
        expect(x.at(-1)).not.toBe(y.at(-1))
      }),
      { seed: 6 },
    )
  })

  test('memory is limited, and a worker that ends is forgotten', () => {
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

test('the slack covers random differences of load', async () => {
  const { router, replicas } = fleetOf('a', 'b')
  const first = await routeOf(router, inSession('s'))
  const [home, other] = first === 'a' ? replicas : [...replicas].reverse()
  for (const [least, most] of [
    [0, 12],
    [8, 27],
    [32, 61],
    [100, 146],
  ]) {
    other!.numInFlight = least!
    home!.numInFlight = most!
    expect(await routeOf(router, inSession('s'))).toBe(home!.id)
  }
  home!.numInFlight++
  expect(await routeOf(router, inSession('s'))).toBe(other!.id)
})

test('a worker that was given more than another loses one session to it while it is busier', async () => {
  const { router, a, b, memory } = fleetOf('a', 'b')
  b.isReady = false
  await routeOf(router, inSession('hot'))
  await routeOf(router, inSession('cold'))
  b.isReady = true
  const routes = async (count: number) => {
    const all: (string | undefined)[] = []
    for (let i = 0; i < count; i++) all.push(await routeOf(router, inSession('hot')))
    return all.join('')
  }
  // Nothing is in flight, so nobody would gain.
  expect(await routes(20)).toBe('a'.repeat(20))
  a.numGiven = 2
  a.numInFlight = 1
  expect(await routes(12)).toBe(`${'a'.repeat(11)}b`)
  expect(await routeOf(router, inSession('cold'))).toBe('a')
  expect(memory.counts).toMatchObject({ sessionHits: 32, sessionSpills: 1 })
})

test('a worker that comes back is given what is new, and is not far behind', async () => {
  const { router, a, b, c } = fleetOf('a', 'b', 'c')
  c.isReady = false
  for (let i = 0; i < 200; i++) await routeOf(router, request())
  expect([a.numGiven, b.numGiven]).toEqual([100, 100])
  c.isReady = true
  const routes = await Promise.all(Array.from({ length: 36 }, () => routeOf(router, request({ cache: 'no-store' }))))
  const counts = ['a', 'b', 'c'].map((id) => routes.filter((route) => route === id).length)
  // All at once: in flight they differ by two at most.
  expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(2)
  expect(counts[2]).toBeGreaterThanOrEqual(12)
  expect(c.numGiven).toBeGreaterThanOrEqual(100 - 36 + 12)
})

describe('retries', () => {
  const dies = failing('model_not_loaded')

  test('a request that has not started goes to another worker, once', async () => {
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

  test('it waits for its own worker to return if there is no other', async () => {
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

  test('a request that has started is not retried, nor an invalid one', async () => {
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

  test('a full queue is no error while another worker has room', async () => {
    const { router, a, b } = fleetOf('a', 'b')
    b.numInFlight = 1
    const full = failing('queue_full')
    a.fake.script = full
    expect(await routeOf(router, request())).toBe('b')
    b.fake.script = full
    await expect(run(router, request())).rejects.toMatchObject({ code: 'queue_full' })
  })

  test('a cancelled request is not waited for', async () => {
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
