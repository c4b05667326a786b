import { expect, test } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, promptOf, requestOf, tokenBytes, V } from './kit.ts'
import { setUp, tell, turnOf } from './session-kit.ts'

/** Steps until `id` has its first token, while `flood` keeps so many requests of `tenant` x in the queue. */
function stepsUntilServed(numFlood: number): number {
  const runner = new FakeRunner({ vocabSize: V, numSlots: 16, maxTokens: 128 })
  const engine = new Engine(runner, tokenBytes, { prefillChunk: 64 })
  const collected = new Collected()
  const y = (id: string) => requestOf({ id, tenant: 'y', prompt: promptOf(10), maxTokens: 5 })
  // It has been here before.
  engine.submit(y('early'))
  while (!engine.isIdle) collected.add(engine.step())
  for (let i = 0; i < numFlood; i++) {
    engine.submit(requestOf({ id: `x${i}`, tenant: 'x', prompt: promptOf(20), maxTokens: 500 }))
  }
  for (let i = 0; i < 40; i++) collected.add(engine.step())
  engine.submit(y('late'))
  for (let steps = 1; ; steps++) {
    collected.add(engine.step())
    if (collected.of('late').some((event) => event.type === 'text')) return steps
    if (steps > 2000) throw new Error('never served')
  }
}

test('a flood of long answers in every slot does not keep another tenant waiting', () => {
  expect(stepsUntilServed(0)).toBe(1)
  // No slot of the flood has to become free: one was reserved.
  expect(stepsUntilServed(200)).toBe(1)
})

test('a full queue has room for another tenant, but not for the same one', () => {
  const runner = new FakeRunner({ vocabSize: V, numSlots: 4, maxTokens: 128 })
  const engine = new Engine(runner, tokenBytes, { maxWaiting: 8 })
  for (let i = 0; i < 12; i++) engine.submit(requestOf({ id: `x${i}`, tenant: 'x' }))
  expect(() => engine.submit(requestOf({ id: 'more', tenant: 'x' }))).toThrow('waiting')
  for (let i = 0; i < 4; i++) engine.submit(requestOf({ id: `y${i}`, tenant: 'y' }))
  expect(() => engine.submit(requestOf({ id: 'y4', tenant: 'y' }))).toThrow('waiting')
})

test('a queue full of requests for one session also has room for another tenant', () => {
  const { engine } = setUp({ limits: { maxWaiting: 8 }, fake: { numSlots: 4 } })
  const wait = (id: string, tenant: string) => engine.submit(turnOf({ id, tenant, maxTokens: 500 }, { id: 'busy' }))
  expect(() => {
    for (let i = 0; i < 40; i++) wait(`x${i}`, 'x')
  }).toThrow('waiting')
  engine.submit(requestOf({ id: 'y', tenant: 'y' }))
  wait('y0', 'y')
  expect(() => wait('more', 'x')).toThrow('waiting')
  engine.dispose()
})

test('slots that hold states of its turns do not count against a tenant', async () => {
  const { engine } = setUp({ fake: { numSlots: 4 } })
  for (const id of ['a', 'b', 'c']) await tell(engine, turnOf({ tenant: 'x' }, { id }))
  await tell(engine, requestOf({ id: 'idle', tenant: 'z' }))
  // One slot is left, which x gets only if it holds none.
  engine.submit(requestOf({ id: 'wide', tenant: 'y', n: 3, maxTokens: 500 }))
  engine.step()
  engine.submit(requestOf({ id: 'late', tenant: 'x' }))
  engine.step()
  expect(engine.stats).toMatchObject({ running: 2, waiting: 0 })
  engine.dispose()
})
