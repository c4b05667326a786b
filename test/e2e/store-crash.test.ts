/**
 * The store is killed at random moments: it can always be opened again, every session is at its last acknowledged
 * version or the one being written, never in between, and no file is left behind.
 *
 * SKEIN_CRASHES sets how often; 20 by default. SKEIN_SEED is the first moment, so that processes can share the work.
 */
// @module-tag night
import { spawn } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect, test } from 'vitest'
import { StoreDatabase } from '../../src/state/store/database.ts'
import { openDatabase } from '../../src/state/store/sqlite.ts'
import { IDENTITY, newFolder } from '../helpers/direct-store.ts'

const NUM_CRASHES = Number(process.env.SKEIN_CRASHES ?? 20)
const FIRST = Number(process.env.SKEIN_SEED ?? 0)
const CHILD = join(import.meta.dirname, '../helpers/store-child.mjs')

/** Runs the writer and kills it a moment after this many acknowledgements; returns what it acknowledged. */
function writeAndDie(folder: string, maxInlineBytes: number, seed: number, afterAcks: number) {
  const args = [CHILD, folder, String(maxInlineBytes), String(seed)]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const acknowledged = new Map<string, number>()
  let numAcks = 0
  return new Promise<Map<string, number>>((resolve) => {
    const lines = createInterface({ input: child.stdout })
    const die = () => setTimeout(() => child.kill('SIGKILL'), (seed * 7919) % 23)
    lines.on('line', (line) => {
      const [word, id, version] = line.split(' ')
      if (word === 'ack') acknowledged.set(id!, Number(version))
      if (word === 'ack') numAcks++
      if (numAcks === afterAcks && (word === 'ack' || afterAcks === 0)) die()
    })
    lines.on('close', () => resolve(acknowledged))
  })
}

/** The content of the store after its next start, with each state checked against its version. */
function inspect(folder: string): Map<string, number> {
  const database = new StoreDatabase({ folder, identity: IDENTITY, isDurable: true })
  const content = new Map<string, number>()
  const files = new Set<string>()
  for (const { id, record } of database.sessions()) {
    const { key, numTokens } = record.turns[0]!
    const { tokens, tail, state } = database.load(key, 'n')
    const { version } = record
    expect([key, numTokens, tokens[0], tail[0]]).toEqual([`${id} ${version}`, 41, version, version])
    expect(state[0]!.every((value) => value === version)).toBe(true)
    expect(state[1]!.every((value) => value === version + 0.5)).toBe(true)
    content.set(id, version)
    files.add(key)
  }
  database.close()
  const db = openDatabase(join(folder, 'sessions.db'), { timeout: 5000 })
  expect(db.pragma('integrity_check', { simple: true })).toBe('ok')
  const named = db.prepare('SELECT file FROM states WHERE file IS NOT NULL').pluck().all()
  expect(db.prepare('SELECT count(*) FROM states').pluck().get()).toBe(files.size)
  db.close()
  expect(new Set(readdirSync(join(folder, 'states')))).toEqual(new Set(named))
  return content
}

test.each([
  ['rows', 2 ** 20],
  ['files', 1000],
])(
  `killed ${NUM_CRASHES / 2} times, states as %s`,
  async (_, maxInlineBytes) => {
    const folder = newFolder()
    let before = new Map<string, number>()
    for (let crash = 0; crash < NUM_CRASHES / 2; crash++) {
      const acknowledged = await writeAndDie(folder, maxInlineBytes, FIRST + crash, ((FIRST + crash) * 13) % 17)
      const after = inspect(folder)
      for (const [id, version] of before) acknowledged.set(id, Math.max(version, acknowledged.get(id) ?? 0))
      for (const [id, version] of acknowledged) {
        const found = after.get(id) ?? 0
        // The commit in progress at the kill may have succeeded.
        expect([version, version + 1]).toContain(found)
      }
      before = after
    }
    expect(before.size).toBe(5)
  },
  3_600_000,
)
