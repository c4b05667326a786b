/**
 * A store under two days' writing of a busy server, while a process reads without a pause: log and files stay limited,
 * and a reader that never ends stops the writing before the disk is full.
 *
 * SKEIN_GROWTH sets the number of commits; 1 000 by default, 1 500 with SKEIN_SLOW=1. One per second for 48 hours is
 * 172 800.
 */
// @module-tag night
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { StoreDatabase } from '../../src/state/store/database.ts'
import { IDENTITY, newFolder } from '../helpers/direct-store.ts'
import { trials } from '../helpers/slow.ts'

const NUM_COMMITS = Number(process.env.SKEIN_GROWTH ?? trials(1000, 1500))
const READER = join(import.meta.dirname, '../helpers/store-reader.mjs')
const NUM_SESSIONS = 50
const MAX_TURNS = 16
const MIB = 2 ** 20
const FLOATS = [new Float32Array(512), new Float32Array(16_384).fill(0.5)]
const STATE_BYTES = 4 * (512 + 16_384)

async function readFor(folder: string, ms: number): Promise<ChildProcess> {
  const args = [READER, join(folder, 'sessions.db'), String(ms)]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  await once(child.stdout!, 'data')
  return child
}

const sizeOf = (path: string) => statSync(path, { throwIfNoEntry: false })?.size ?? 0
const logOf = (folder: string) => sizeOf(join(folder, 'sessions.db-wal')) / MIB

function folderBytes(folder: string): number {
  const states = readdirSync(join(folder, 'states')).map((name) => join(folder, 'states', name))
  const database = ['sessions.db', 'sessions.db-wal'].map((name) => join(folder, name))
  return [...states, ...database].reduce((sum, path) => sum + sizeOf(path), 0)
}

/** Turn `i` of a server whose sessions take turns; the oldest turn of the session is removed. */
function commitTurn(database: StoreDatabase, i: number): void {
  const session = i % NUM_SESSIONS
  const version = 1 + Math.floor(i / NUM_SESSIONS)
  const keyOf = (turn: number) => `${session} ${turn}`
  const first = Math.max(1, version - MAX_TURNS + 1)
  const turns = Array.from({ length: version - first + 1 }, (_, at) => {
    const turn = first + at
    const facts = { key: keyOf(turn), numTokens: 2001, bytes: STATE_BYTES + 8004, isForeign: false }
    return { turn, parent: turn - 1, createdAt: 1, ...facts }
  })
  const times = { createdAt: 1, updatedAt: i, ttlMs: null }
  const record = { version, head: version, nextTurn: version + 1, turns, ...times }
  const text = { tokens: new Int32Array(2000).fill(i), tail: Int32Array.of(i) }
  const put = { key: keyOf(version), ...text, floats: FLOATS, namespace: 'n', isForeign: false }
  database.commit({
    puts: [put],
    sessions: [{ namespace: 'n', id: `s${session}`, record }],
    deleteKeys: version > MAX_TURNS ? [keyOf(version - MAX_TURNS)] : [],
  })
}

test.each([
  ['rows', MIB],
  ['files', 1000],
])(
  '%s: log and files are bounded while others read all the time',
  async (_, maxInlineBytes) => {
    const folder = newFolder()
    const database = new StoreDatabase({ folder, identity: IDENTITY, isDurable: false, maxInlineBytes })
    const reader = await readFor(folder, 300)
    const began = performance.now()
    let [longest, largestLog, purgedAt] = [0, 0, began]
    for (let i = 0; i < NUM_COMMITS; i++) {
      const before = performance.now()
      commitTurn(database, i)
      longest = Math.max(longest, performance.now() - before)
      if (i % 50 === 0) largestLog = Math.max(largestLog, logOf(folder))
      if (process.env.SKEIN_GROWTH && (i + 1) % 10_000 === 0)
        console.log(
          `${i + 1} commits after ${((before - began) / 1000).toFixed(0)} s, log at most ${largestLog.toFixed(0)} MiB`,
        )
      // As the store's thread does.
      if (performance.now() - purgedAt > 1000) {
        purgedAt = performance.now()
        database.purge()
      }
    }
    const seconds = (performance.now() - began) / 1000
    reader.kill('SIGKILL')
    await once(reader, 'exit')
    database.purge()
    const kept = Math.min(MAX_TURNS * NUM_SESSIONS, NUM_COMMITS) * (STATE_BYTES + 8004)
    const used = folderBytes(folder)
    if (process.env.SKEIN_GROWTH) {
      const share = ((100 * used) / kept).toFixed(0)
      console.log(
        `${NUM_COMMITS} commits in ${seconds.toFixed(0)} s, the longest ${longest.toFixed(0)} ms; log at most ${largestLog.toFixed(0)} MiB; the folder has ${share} % of what is kept`,
      )
    }
    expect(largestLog).toBeLessThan(256)
    // Freed pages are reused, except for what was written while the log could not be emptied.
    expect(used).toBeLessThan(1.5 * kept + 64 * MIB)
    expect(database.sessions()).toHaveLength(NUM_SESSIONS)
    database.close()
  },
  3_600_000,
)

test.skipIf(!process.env.SKEIN_GROWTH)(
  'a reader that never ends stops the writing before the log reaches 256 MiB',
  async () => {
    const folder = newFolder()
    const database = new StoreDatabase({ folder, identity: IDENTITY, isDurable: false })
    const reader = await readFor(folder, 0)
    let i = 0
    const write = () => {
      for (; i < 1e6; i++) commitTurn(database, i)
    }
    expect(write).toThrow('end its read transaction')
    expect(logOf(folder)).toBeGreaterThan(200)
    expect(logOf(folder)).toBeLessThan(256)
    reader.kill('SIGKILL')
    await once(reader, 'exit')
    await new Promise((resolve) => setTimeout(resolve, 1100))
    commitTurn(database, i)
    expect(logOf(folder)).toBeLessThan(64)
    database.close()
  },
  600_000,
)
