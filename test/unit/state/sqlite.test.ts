/** Waiting for another process's transaction: how soon, how long, and what then. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { afterAll, expect, test, vi } from 'vitest'
import { alone, isLocked, openDatabase, Patience } from '../../../src/state/store/sqlite.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-sqlite-'))
afterAll(() => rmSync(folder, { recursive: true }))

function databaseIn(name: string) {
  const path = join(folder, name)
  writeFileSync(path, '')
  const db = openDatabase(path, { timeout: 5000 })
  db.exec('PRAGMA journal_mode = WAL; CREATE TABLE t (x INTEGER)')
  return { path, db }
}

/** Holds the lock for 5 ms, again and again, with half a millisecond between; counts. */
const HOLDER = `
  const { workerData } = require('node:worker_threads')
  const { DatabaseSync } = require('@photostructure/sqlite')
  const db = new DatabaseSync(workerData.path, { timeout: 5000 })
  const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
  while (Atomics.load(workerData.shared, 1) === 0) {
    db.exec('BEGIN IMMEDIATE')
    Atomics.add(workerData.shared, 0, 1)
    Atomics.notify(workerData.shared, 0)
    sleep(5)
    db.exec('COMMIT')
    sleep(0.5)
  }`

test('who waits for a lock that is free for a moment again and again gets it soon', async () => {
  const { path, db } = databaseIn('busy.db')
  const shared = new Int32Array(new SharedArrayBuffer(8))
  const holder = new Worker(HOLDER, { eval: true, workerData: { path, shared } })
  const ended = new Promise((resolve) => holder.once('exit', resolve))
  while (Atomics.load(shared, 0) === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  const waits = Array.from({ length: 30 }, () => {
    // It has just begun.
    Atomics.wait(shared, 0, Atomics.load(shared, 0), 1000)
    const before = Atomics.load(shared, 0)
    return alone(db, 5000, () => Atomics.load(shared, 0) - before)
  })
  Atomics.store(shared, 1, 1)
  await ended
  db.close()
  // With SQLite's own wait the slowest tenth waits for a hundred transactions of the other.
  expect(waits.toSorted((a, b) => a - b)[26]).toBeLessThan(10)
})

test('of eight that want the lock all the time none falls behind', () => {
  let clock = 0
  let pause = 0
  const spies = [
    vi.spyOn(performance, 'now').mockImplementation(() => clock),
    vi.spyOn(Atomics, 'wait').mockImplementation((_array, _index, _value, ms = 0) => {
      pause = ms
      return 'timed-out'
    }),
  ]
  /** When it asks again, and since when it waits. */
  const waiters = Array.from({ length: 8 }, () => ({ patience: new Patience(1e6), at: 0, since: 0, numTurns: 0 }))
  const waits: number[] = []
  let freeAt = 0
  while (waits.length < 4000) {
    const next = waiters.reduce((a, b) => (b.at < a.at ? b : a))
    clock = next.at
    if (clock < freeAt) {
      next.patience.waits()
      next.at += pause
      continue
    }
    waits.push(clock - next.since)
    next.numTurns++
    // It holds the lock for ten milliseconds, and wants it again a millisecond later.
    freeAt = clock + 10
    next.at = freeAt + 1
    next.since = next.at
    clock = next.at
    next.patience = new Patience(1e6)
  }
  for (const spy of spies) spy.mockRestore()
  const turns = waiters.map(({ numTurns }) => numTurns)
  expect(Math.max(...turns) / Math.min(...turns)).toBeLessThan(1.25)
  // In turn each would wait for 70.
  expect(waits.toSorted((a, b) => a - b)[3960]).toBeLessThan(300)
})

test('it waits as long as it may, and then fails without having done anything', () => {
  const { path, db } = databaseIn('held.db')
  const other = openDatabase(path, { timeout: 0 })
  other.exec('BEGIN IMMEDIATE')
  const began = performance.now()
  let numRuns = 0
  const insert = () => {
    numRuns++
    return db.prepare('INSERT INTO t VALUES (1)').run().changes
  }
  const thrown = (() => {
    try {
      alone(db, 60, insert)
    } catch (error) {
      return error
    }
    return null
  })()
  expect(isLocked(thrown)).toBe(true)
  expect(performance.now() - began).toBeGreaterThanOrEqual(60)
  expect(numRuns).toBe(0)
  expect(db.pragma('busy_timeout')).toEqual([{ timeout: 60 }])
  other.exec('COMMIT')
  expect(alone(db, 60, insert)).toBe(1)
  expect(numRuns).toBe(1)
  other.close()
  db.close()
})

test('what fails within the transaction is undone, and is not tried again', () => {
  const { db } = databaseIn('undone.db')
  let numRuns = 0
  const fail = () => {
    numRuns++
    db.exec('INSERT INTO t VALUES (1)')
    throw new Error('no')
  }
  expect(() => alone(db, 1000, fail)).toThrow('no')
  expect(numRuns).toBe(1)
  expect(db.prepare('SELECT COUNT(*) AS n FROM t').get()).toEqual({ n: 0 })
  db.close()
})
