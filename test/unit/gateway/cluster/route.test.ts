import { describe, expect, test } from 'vitest'
import { type ClusterMember, Nodes } from '../../../../src/gateway/cluster/nodes.ts'
import { chooseNode, firstFor, hashOf } from '../../../../src/gateway/cluster/rendezvous.ts'
import { RequestRoute, SessionOwners } from '../../../../src/gateway/cluster/route.ts'

const target = (id: string, inFlight = 0, slots = 16) => ({ id, inFlight, slots })
const KEYS = Array.from({ length: 4000 }, (_, i) => hashOf(`prompt ${i}`))

function share(ids: readonly string[], nodes: Parameters<typeof chooseNode>[1]): number[] {
  const chosen = KEYS.map((key) => chooseNode(key, nodes, null)!.id)
  return ids.map((id) => chosen.filter((one) => one === id).length / KEYS.length)
}

describe('rendezvous', () => {
  test('spreads keys evenly, weighted by slots', () => {
    for (const part of share(
      ['a', 'b', 'c', 'd'],
      ['a', 'b', 'c', 'd'].map((id) => target(id)),
    ))
      expect(part).toBeCloseTo(0.25, 1)
    const [small, large] = share(['a', 'b'], [target('a', 0, 16), target('b', 0, 48)])
    expect(small).toBeGreaterThan(0.2)
    expect(small).toBeLessThan(0.3)
    expect(large).toBeGreaterThan(0.7)
  })

  test('when a node leaves, only its keys move', () => {
    const all = ['a', 'b', 'c', 'd', 'e'].map((id) => target(id))
    for (const key of KEYS.slice(0, 500)) {
      const before = firstFor(key, all)!.id
      const after = firstFor(
        key,
        all.filter(({ id }) => id !== 'c'),
      )!.id
      if (before !== 'c') expect(after).toBe(before)
    }
  })

  test('the order of the nodes does not matter', () => {
    const all = ['a', 'b', 'c', 'd', 'e'].map((id) => target(id))
    for (const key of KEYS.slice(0, 200)) expect(firstFor(key, all)!.id).toBe(firstFor(key, [...all].reverse())!.id)
  })
})

describe('the choice of a node', () => {
  test('a session stays while its node is not much busier than the others', () => {
    const others = [target('a', 4), target('b', 4)]
    const near = target('c', 9)
    const far = target('c', 30)
    expect(chooseNode(1, [...others, near], near)?.id).toBe('c')
    expect(chooseNode(1, [...others, far], far)?.id).not.toBe('c')
  })

  test('prompts leave the node of their hash only if it is too busy', () => {
    const idle = ['a', 'b', 'c'].map((id) => target(id))
    const home = chooseNode(KEYS[0]!, idle, null)!.id
    const with9 = idle.map((one) => (one.id === home ? target(home, 9) : one))
    const with2 = idle.map((one) => (one.id === home ? target(home, 2) : one))
    expect(chooseNode(KEYS[0]!, with2, null)?.id).toBe(home)
    const other = chooseNode(KEYS[0]!, with9, null)!.id
    expect(other).not.toBe(home)
    // All requests for one key that leave that node go to one other node.
    expect(chooseNode(KEYS[0]!, with9, null)?.id).toBe(other)
  })

  test('a node with more slots may have more in flight', () => {
    const large = target('large', 40, 256)
    expect(chooseNode(1, [target('small', 2, 16), large], large)?.id).toBe('large')
  })

  test('a node that is idle by chance does not attract sessions', () => {
    const many = Array.from({ length: 200 }, (_, i) => target(`n${i}`, i === 7 ? 20 : 50, 64))
    const home = many[3]!
    expect(chooseNode(1, many, home)?.id).toBe(home.id)
  })

  test('without nodes there is no choice', () => {
    expect(chooseNode(1, [], null)).toBeNull()
  })
})

const member = (node: string, more: Partial<ClusterMember> = {}): ClusterMember => ({
  id: `${node}-1`,
  node,
  url: `http://${node}:8000`,
  model: 'demo',
  slots: 16,
  inFlight: 0,
  ...more,
})

describe('what a gateway knows about nodes', () => {
  test('workers of one node are one target; requests sent since its last report count', () => {
    const nodes = new Nodes()
    nodes.update([member('a', { inFlight: 3 }), member('a', { id: 'a-2', inFlight: 2 }), member('b')])
    const [a] = nodes.serving('demo')
    expect(a).toMatchObject({ id: 'a', slots: 32, inFlight: 5 })
    const leave = nodes.take('a')
    expect(nodes.serving('demo')[0]?.inFlight).toBe(6)
    nodes.update([member('a', { inFlight: 4 }), member('b')])
    expect(nodes.serving('demo')[0]?.inFlight).toBe(4)
    leave()
    expect(nodes.serving('demo')[0]?.inFlight).toBe(3)
    expect(nodes.serving('another')).toEqual([])
  })

  test('a draining node gets nothing for a while, unless it is the only one', () => {
    let now = 0
    const nodes = new Nodes(() => now)
    nodes.update([member('a'), member('b')])
    nodes.avoid('a')
    expect(nodes.serving('demo').map(({ id }) => id)).toEqual(['b'])
    expect(nodes.serving('demo', new Set(['b'])).map(({ id }) => id)).toEqual(['a'])
    now = 10_001
    expect(nodes.serving('demo')).toHaveLength(2)
  })

  test('fields of a newer release are ignored', () => {
    const nodes = new Nodes()
    const newer = { ...member('a'), temperament: 'mild', info: { later: true } }
    nodes.update([newer])
    expect(nodes.serving('demo')).toHaveLength(1)
  })
})

describe('the route of a request', () => {
  const begin = (session: string | null, storedOwner: string | null = null) => {
    const nodes = new Nodes()
    nodes.update(['a', 'b', 'c'].map((node) => member(node)))
    const owners = new SessionOwners()
    const route = () => new RequestRoute(nodes, owners, { model: 'demo', session, prefix: 'x' }, storedOwner)
    return { nodes, owners, route }
  }

  test('a session goes to its stored owner, then to the node that answered', () => {
    const { owners, route } = begin('s', 'b')
    const first = route()
    const step = first.next()!
    expect(step).toMatchObject({ node: { id: 'b' }, mayTake: false })
    first.answered(step)
    expect(owners.get('s')).toBe('b')
  })

  test('a wrong guess is redirected once; then the node takes the session', () => {
    const { route, owners } = begin('s', 'a')
    const way = route()
    const one = way.next()!
    way.failed(one, { kind: 'misdirected', owner: 'c' })
    const two = way.next()!
    expect(two).toMatchObject({ node: { id: 'c' }, mayTake: false })
    way.failed(two, { kind: 'misdirected', owner: 'b' })
    const three = way.next()!
    expect(three.mayTake).toBe(true)
    way.answered(three)
    expect(owners.get('s')).toBe(three.node.id)
  })

  test('another node takes a session from a draining node', () => {
    const { route, nodes } = begin('s', 'a')
    const way = route()
    way.failed(way.next()!, { kind: 'unavailable' })
    const step = way.next()!
    expect(step.node.id).not.toBe('a')
    expect(step.mayTake).toBe(true)
    expect(nodes.isAvoided('a')).toBe(true)
  })

  test('a prompt tries other nodes, each once, and takes no session', () => {
    const { route } = begin(null)
    const way = route()
    const tried = new Set<string>()
    for (let step = way.next(); step !== null; step = way.next()) {
      expect(step.mayTake).toBe(false)
      tried.add(step.node.id)
      way.failed(step, { kind: 'refused' })
    }
    expect(tried.size).toBe(3)
  })
})

test('owners expire', () => {
  const owners = new SessionOwners(2)
  owners.set('x', 'a')
  owners.set('y', 'b')
  owners.set('x', 'c')
  owners.set('z', 'd')
  expect([owners.get('x'), owners.get('y'), owners.get('z')]).toEqual(['c', null, 'd'])
})
