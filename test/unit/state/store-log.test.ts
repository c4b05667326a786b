/** The log of the store under continuous writing, with a clock and readers of the test. */
import { statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, test, vi } from 'vitest'
import { StoreLog } from '../../../src/state/store/log.ts'
import type { Database } from '../../../src/state/store/sqlite.ts'
import { newFolder } from '../../helpers/direct-store.ts'

const MIB = 2 ** 20
const LOCK_MS = 5000

afterEach(() => vi.restoreAllMocks())

/** A log that is emptied after waiting this many milliseconds for readers. */
function logUnder(readersMs: number) {
  const path = join(newFolder(), 'sessions.db')
  writeFileSync(`${path}-wal`, '')
  let clock = 0
  let waited = 0
  vi.spyOn(performance, 'now').mockImplementation(() => clock)
  vi.spyOn(Atomics, 'wait').mockImplementation((_array, _index, _value, ms = 0) => {
    clock += ms
    waited += ms
    return 'timed-out'
  })
  let began = 0
  const pragma = (text: string) => {
    if (text === 'wal_checkpoint(PASSIVE)') began = clock
    if (text.startsWith('busy_timeout')) return []
    if (clock - began < readersMs) return [{ busy: 1 }]
    truncateSync(`${path}-wal`, 0)
    return [{ busy: 0 }]
  }
  const exec = () => {}
  // The database functions that a log uses.
  const log = new StoreLog({ location: () => path, pragma, exec } as unknown as Database, LOCK_MS)
  /** A second of commits, a hundred of them. */
  const write = (mib: number) => {
    for (let i = 0; i < 100; i++) {
      log.inlineBytes(MIB)
      log.used()
      clock += 10
      truncateSync(`${path}-wal`, statSync(`${path}-wal`).size + Math.floor((mib * MIB) / 100))
    }
  }
  const seconds = () => ({ all: clock / 1000, waited: waited / 1000 })
  return { log, write, seconds }
}

test.each([5, 20, 60])('writers wait for readers that end, at %i MiB a second', (mib) => {
  const { log, write, seconds } = logUnder(900)
  for (let second = 0; second < 60; second++) {
    write(mib)
    expect(log.bytes).toBeLessThan(256 * MIB)
  }
  expect(seconds().waited / seconds().all).toBeLessThan(0.4)
})

test('a reader that never ends stops the writing, and is not waited for again and again', () => {
  const { log, write, seconds } = logUnder(1e9)
  expect(() => {
    for (let second = 0; second < 300; second++) write(1)
  }).toThrow('end its read transaction')
  expect(log.bytes).toBeGreaterThan(230 * MIB)
  expect(seconds().waited / seconds().all).toBeLessThan(0.3)
})
