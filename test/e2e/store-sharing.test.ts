/**
 * Several processes write to one store and are killed at random moments: no version of a session is written twice, no
 * acknowledged one is lost, and the claims of a dead process are free for others at once.
 *
 * SKEIN_CRASHES sets how often; 20 by default.
 */
// @module-tag night
import { type ChildProcess, spawn } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { StoreDatabase } from '../../src/state/store/database.ts'
import { IDENTITY, newFolder } from '../helpers/direct-store.ts'

const NUM_CRASHES = Number(process.env.SKEIN_CRASHES ?? 20)
const NUM_WRITERS = 3
const CHILD = join(import.meta.dirname, '../helpers/store-sharer.mjs')

interface Ack {
  readonly id: string
  readonly version: number
}

class Writers {
  readonly acks: Ack[] = []
  numRecent = 0
  readonly #folder: string
  readonly #maxInlineBytes: number
  readonly #running: { child: ChildProcess; ended: Promise<void> }[] = []
  #numStarted = 0
  #errors = ''

  constructor(folder: string, maxInlineBytes: number) {
    this.#folder = folder
    this.#maxInlineBytes = maxInlineBytes
  }

  /** Resolves when it has opened the store. */
  start(): Promise<void> {
    this.#numStarted++
    const args = [CHILD, this.#folder, String(this.#maxInlineBytes), String(this.#numStarted)]
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    child.stderr.on('data', (bytes: Buffer) => {
      this.#errors += bytes.toString()
    })
    const lines = createInterface({ input: child.stdout })
    const ended = new Promise<void>((resolve) => lines.on('close', resolve))
    this.#running.push({ child, ended })
    return new Promise((resolve) => {
      lines.on('line', (line) => {
        const [word, id, version] = line.split(' ')
        if (word === 'open') resolve()
        if (word === 'ack') this.acks.push({ id: id!, version: Number(version) })
        if (word === 'taken') this.numRecent++
      })
      lines.on('close', resolve)
    })
  }

  /** Kills the one that has run longest and waits for the end of its output. */
  async kill(): Promise<void> {
    const { child, ended } = this.#running.shift()!
    child.kill('SIGKILL')
    await ended
    expect(this.#errors).toBe('')
  }

  get count(): number {
    return this.#running.length
  }
}

/** The final content of the store, with each state checked against its version. */
function inspect(folder: string): Map<string, number> {
  const database = new StoreDatabase({ folder, identity: IDENTITY, isDurable: true })
  const content = new Map<string, number>()
  const keys = new Set<string>()
  for (const { id, record } of database.sessions()) {
    const { key } = record.turns[0]!
    const { tail, state } = database.load(key, 'n')
    const [written = -1] = tail
    expect(key.split(' ')[1]).toBe(String(written))
    expect(state[1]!.every((value) => value === written + 0.5)).toBe(true)
    // Higher by a gap if a process died that had claimed it, and nobody has written since.
    expect([0, 1000]).toContain(record.version - written)
    content.set(id, record.version)
    keys.add(key)
    // All claims belonged to processes that are dead.
    expect(database.claim({ namespace: 'n', id }, false).session).not.toBeNull()
  }
  const blobs = readdirSync(join(folder, 'states'))
  expect(blobs.filter((name) => !keys.has(name))).toEqual([])
  expect(readdirSync(join(folder, 'owners'))).toEqual([database.owner])
  database.close()
  return content
}

test.each([
  ['rows', 2 ** 20],
  ['files', 1000],
])(
  `${NUM_WRITERS} writers, killed ${NUM_CRASHES / 2} times, states as %s`,
  async (_, maxInlineBytes) => {
    const folder = newFolder()
    const writers = new Writers(folder, maxInlineBytes)
    for (let i = 0; i < NUM_WRITERS; i++) await writers.start()
    for (let crash = 0; crash < NUM_CRASHES / 2; crash++) {
      await delay(20 + ((crash * 37) % 90))
      await writers.kill()
      await writers.start()
    }
    while (writers.count > 0) await writers.kill()
    const names = writers.acks.map(({ id, version }) => `${id} ${version}`)
    expect(new Set(names).size).toBe(names.length)
    const content = inspect(folder)
    for (const { id, version } of writers.acks) {
      expect(content.get(id)).toBeGreaterThanOrEqual(version)
    }
    expect([content.size, writers.numRecent > 0]).toEqual([5, true])
  },
  600_000,
)
