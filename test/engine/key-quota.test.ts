import { expect, test } from 'vitest'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import type { SkeinError } from '../../src/errors.ts'
import { call, refusal, settle, setUp, tell, turnOf } from './session-kit.ts'

test('the limit of a key on stored bytes applies to its new turns, forks and imports, and to no other key', async () => {
  const { engine } = setUp()
  await tell(engine, turnOf({ id: '1', tenant: 'a' }))
  const { bytes } = await call(engine, 'sessions.get', { tenant: 'a', id: 's' })
  expect(bytes).toBeGreaterThan(0)
  const storedBytes = bytes - 1
  const again = (id: string, tenant: string, own?: number) => turnOf({ id, tenant, storedBytes: own })
  expect(() => engine.submit(again('2', 'a', storedBytes))).toThrow('their key may store')
  const ref = { tenant: 'a', id: 's' }
  const fork = { ...ref, newId: 't', storedBytes }
  expect(await refusal(engine, 'sessions.fork', fork)).toBe('too_large')
  const exported = await call(engine, 'sessions.export', ref)
  const imported = { tenant: 'a', id: 'u', bytes: exported, storedBytes }
  expect(await refusal(engine, 'sessions.import', imported)).toBe('too_large')
  // Room for one more turn; the limit of another tenant is separate.
  await tell(engine, again('3', 'a', 3 * bytes))
  await tell(engine, again('4', 'b', storedBytes))
})

test('turns being written count, so many at once cannot exceed a quota', async () => {
  const maxBytes = 600_000
  const sizes = { slots: 16, memory: { count: 1000, bytes: Number.POSITIVE_INFINITY } }
  const limits = { ...DEFAULT_STATE_OPTIONS.limits, maxBytes }
  const { engine } = setUp({ fake: { numSlots: 64, layers: 100 }, states: { limits, sizes } })
  const refused: string[] = []
  const submit = (id: string) => {
    try {
      engine.submit(turnOf({ id, prompt: Int32Array.of(1), maxTokens: 1 }, { id }))
    } catch (error) {
      refused.push((error as SkeinError).code)
    }
  }
  for (let i = 0; i < 400; i += 40) {
    for (let j = i; j < i + 40; j++) submit(`s${j}`)
    await settle(engine)
  }
  const infos = await call(engine, 'sessions.list', { tenant: '' })
  const bytes = infos.reduce((sum, info) => sum + info.bytes, 0)
  expect(bytes).toBeGreaterThan(0.99 * maxBytes)
  expect(bytes).toBeLessThan(1.01 * maxBytes)
  expect(new Set(refused)).toEqual(new Set(['too_large']))
})
