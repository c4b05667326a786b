import { expect, test } from 'vitest'
import { call, refusal, setUp, tell, turnOf } from './session-kit.ts'

test('a key’s bound on stored bytes holds for its new turns, forks and imports, and for no other', async () => {
  const { engine } = setUp()
  await tell(engine, turnOf({ id: '1', tenant: 'a' }))
  const { bytes } = await call(engine, 'sessions.get', { tenant: 'a', id: 's' })
  expect(bytes).toBeGreaterThan(0)
  const storedBytes = bytes - 1
  const again = (id: string, tenant: string, own?: number) =>
    turnOf({ id, tenant, storedBytes: own })
  expect(() => engine.submit(again('2', 'a', storedBytes))).toThrow('their key may store')
  const ref = { tenant: 'a', id: 's' }
  const fork = { ...ref, newId: 't', storedBytes }
  expect(await refusal(engine, 'sessions.fork', fork)).toBe('too_large')
  const exported = await call(engine, 'sessions.export', ref)
  const imported = { tenant: 'a', id: 'u', bytes: exported, storedBytes }
  expect(await refusal(engine, 'sessions.import', imported)).toBe('too_large')
  // Room again, and another tenant's bound is its own.
  await tell(engine, again('3', 'a', bytes))
  await tell(engine, again('4', 'b', storedBytes))
})
