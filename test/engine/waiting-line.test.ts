import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Queued, WaitingLine } from '../../src/engine/fairness/waiting-line.ts'

interface Item extends Queued {
  readonly name: string
}

let count = 0
const item = (tenant: string, n = 1, share?: number): Item => ({
  name: `${tenant}${count++}`,
  numSlots: n,
  request: { tenant, share },
})

/** Admits while there are slots, as the scheduler does; each admission costs `cost`. */
function admitAll(line: WaitingLine<Item>, numFree: number, cost = 10): Item[] {
  const admitted: Item[] = []
  for (let free = numFree; ; ) {
    const next = line.next(free)
    if (next === null || next.numSlots > free) return admitted
    line.admit(next)
    line.charge(next, cost)
    free -= next.numSlots
    admitted.push(next)
  }
}

const tenants = (items: readonly Item[]) => items.map(({ request }) => request.tenant).join('')

describe('one tenant alone', () => {
  test('is served first come first served, with all slots', () => {
    const line = new WaitingLine<Item>(8)
    const items = Array.from({ length: 10 }, () => item('a'))
    for (const each of items) line.push(each)
    expect(admitAll(line, 8)).toEqual(items.slice(0, 8))
    expect([...line]).toEqual(items.slice(8))
  })

  test('a request for many slots is not overtaken', () => {
    const line = new WaitingLine<Item>(8)
    const [large, small] = [item('a', 6), item('a')]
    line.push(large)
    line.push(small)
    expect(admitAll(line, 5)).toEqual([])
    expect(admitAll(line, 8)).toEqual([large, small])
  })

  test('a cancelled request is not served', () => {
    const line = new WaitingLine<Item>(8)
    const [first, second] = [item('a'), item('a')]
    line.push(first)
    line.push(second)
    line.remove(first)
    line.remove(first)
    expect(line.length).toBe(1)
    expect(admitAll(line, 8)).toEqual([second])
  })
})

describe('between tenants', () => {
  test('a flood does not delay a tenant that asks for little', () => {
    const line = new WaitingLine<Item>(4)
    for (let i = 0; i < 100; i++) line.push(item('x'))
    const first = admitAll(line, 4)
    expect(tenants(first)).toBe('xxxx')
    line.push(item('y'))
    line.release(first[0]!)
    expect(tenants(admitAll(line, 1))).toBe('y')
  })

  test('tokens count, not requests', () => {
    const line = new WaitingLine<Item>(1)
    const served = { long: 0, short: 0 }
    for (let i = 0; i < 200; i++) {
      line.push(item('long'))
      line.push(item('short'))
    }
    for (let i = 0; i < 110; i++) {
      const next = line.next(1)!
      line.admit(next)
      const isLong = next.request.tenant === 'long'
      line.charge(next, isLong ? 100 : 10)
      if (isLong) served.long++
      else served.short++
      line.release(next)
    }
    expect(served).toEqual({ long: 10, short: 100 })
  })

  test('by share', () => {
    const line = new WaitingLine<Item>(1)
    let double = 0
    for (let i = 0; i < 90; i++) {
      line.push(item('a', 1, 2))
      line.push(item('b'))
    }
    for (let i = 0; i < 60; i++) {
      const next = line.next(1)!
      line.admit(next)
      line.charge(next, 7)
      line.release(next)
      if (next.request.tenant === 'a') double++
    }
    expect(double).toBe(40)
  })

  test('a tenant that was away has saved up nothing', () => {
    const line = new WaitingLine<Item>(1)
    const early = item('y')
    line.push(early)
    admitAll(line, 1, 1)
    line.release(early)
    for (let i = 0; i < 50; i++) {
      const own = item('x')
      line.push(own)
      line.admit(own)
      line.charge(own, 100)
      line.release(own)
    }
    for (let i = 0; i < 20; i++) {
      line.push(item('x'))
      line.push(item('y'))
    }
    const order = Array.from({ length: 10 }, () => {
      const next = line.next(1)!
      line.admit(next)
      line.charge(next, 100)
      line.release(next)
      return next
    })
    // In turns, from the start.
    expect(tenants(order).match(/y/g)).toHaveLength(5)
  })
})

describe('the reserved slots', () => {
  const setUp = () => {
    let now = 0
    const line = new WaitingLine<Item>(16, () => now)
    return {
      line,
      later: (ms: number) => {
        now += ms
      },
    }
  }

  test('are left free by a tenant above its share while others are present', () => {
    const { line } = setUp()
    const guests = [item('y'), item('y'), item('y')]
    for (const guest of guests) line.push(guest)
    admitAll(line, 16)
    for (const guest of guests.slice(1)) line.release(guest)
    for (let i = 0; i < 40; i++) line.push(item('x'))
    // 16, less the one of a guest, less the two more that they have had at once.
    expect(admitAll(line, 15)).toHaveLength(13)
    line.push(item('y'))
    expect(tenants(admitAll(line, 2))).toBe('y')
  })

  test('are never more than the share of the others', () => {
    const { line } = setUp()
    const guests = Array.from({ length: 12 }, () => item('y'))
    for (const guest of guests) line.push(guest)
    admitAll(line, 16)
    for (const guest of guests) line.release(guest)
    for (let i = 0; i < 40; i++) line.push(item('x'))
    expect(admitAll(line, 16)).toHaveLength(8)
  })

  test('are released a minute after the last request of the others', () => {
    const { line, later } = setUp()
    const guest = item('y')
    line.push(guest)
    admitAll(line, 16)
    line.release(guest)
    for (let i = 0; i < 40; i++) line.push(item('x'))
    expect(admitAll(line, 16)).toHaveLength(15)
    later(60_001)
    expect(admitAll(line, 1)).toHaveLength(1)
  })

  test('are none for requests of nobody, which probe a worker', () => {
    const { line } = setUp()
    const probe: Item = { name: 'probe', numSlots: 1, request: {} }
    line.push(probe)
    admitAll(line, 16)
    line.release(probe)
    for (let i = 0; i < 40; i++) line.push(item('x'))
    expect(admitAll(line, 16)).toHaveLength(16)
  })

  test('never stop a tenant that has nothing yet, however much it wants', () => {
    const { line } = setUp()
    line.push(item('x'))
    admitAll(line, 16)
    const large = item('y', 15)
    line.push(large)
    expect(admitAll(line, 15)).toEqual([large])
  })

  test('do not hold back a tenant within its share', () => {
    const { line } = setUp()
    for (let i = 0; i < 16; i++) line.push(item(`t${i % 4}`))
    expect(admitAll(line, 16)).toHaveLength(16)
  })
})

test('a full queue still accepts a request of a tenant below its share of it', () => {
  const line = new WaitingLine<Item>(1)
  for (let i = 0; i < 100; i++) line.push(item('x'))
  expect(line.isUnderPart(item('x').request, 100)).toBe(false)
  for (let i = 0; i < 50; i++) {
    expect(line.isUnderPart(item('y').request, 100)).toBe(true)
    line.push(item('y'))
  }
  expect(line.isUnderPart(item('y').request, 100)).toBe(false)
})

test('every request is served, whatever comes and goes', () => {
  const step = fc.oneof(
    fc.record({
      kind: fc.constant('push' as const),
      tenant: fc.constantFrom('a', 'b', 'c'),
      n: fc.integer({ min: 1, max: 8 }),
    }),
    fc.record({ kind: fc.constant('release' as const) }),
    fc.record({ kind: fc.constant('cancel' as const) }),
  )
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
      const line = new WaitingLine<Item>(8, () => 0)
      const held: Item[] = []
      let free = 8
      const settle = () => {
        const admitted = admitAll(line, free)
        held.push(...admitted)
        free -= admitted.reduce((sum, { numSlots }) => sum + numSlots, 0)
        expect(free).toBeGreaterThanOrEqual(0)
      }
      const release = () => {
        const gone = held.shift()
        if (gone === undefined) return
        for (let i = 0; i < gone.numSlots; i++) line.release(gone)
        free += gone.numSlots
      }
      for (const each of steps) {
        if (each.kind === 'push') line.push(item(each.tenant, each.n))
        else if (each.kind === 'release') release()
        else line.remove([...line][0] ?? item('a'))
        settle()
      }
      for (let i = 0; line.length > 0; i++) {
        expect(i).toBeLessThan(200)
        release()
        settle()
      }
    }),
  )
})
