/** Shared by the tests of a cluster under faults: clients that talk in sessions, and a sequence of faults. */
import { setTimeout as delay } from 'node:timers/promises'
import { expect } from 'vitest'
import type { Database } from '../../src/cluster/database.ts'
import { retried } from './cluster-history.ts'
import type { Postgres } from './postgres.ts'
import type { S3Double } from './s3-double.ts'

/** A session as its client knows it. */
export interface Talk {
  readonly id: string
  readonly answers: string[]
  /** The last confirmed turn, and its version. */
  head: number
  version: number
}

export function newTalks(count: number): Talk[] {
  return Array.from({ length: count }, (_, i) => ({ id: `s${i}`, answers: [], head: 0, version: 0 }))
}

/** Checks a confirmation: it must be newer than all earlier ones. */
export function note(
  talk: Talk,
  text: string,
  { turn, version }: { readonly turn: number; readonly version: number },
): void {
  expect(turn).toBeGreaterThan(talk.head)
  expect(version).toBeGreaterThan(talk.version)
  talk.answers.push(text)
  talk.head = turn
  talk.version = version
}

/** A pause between two turns. It limits the number of turns, which the end repeats. */
export function think(): Promise<void> {
  return delay(Math.random() * 80)
}

export interface Tally {
  readonly counts: Record<string, number>
  count(what: string): void
}

export function newTally(): Tally {
  const counts: Record<string, number> = {}
  return {
    counts,
    count(what) {
      counts[what] = (counts[what] ?? 0) + 1
    },
  }
}

export type Faults = Readonly<Record<string, () => Promise<void>>>

/** Faults of shared parts: the database restarts, or its clock jumps; the storage fails for a while. */
export function sharedFaults(
  postgres: Postgres,
  database: Database,
  s3: S3Double,
  random: (below: number) => number,
): Faults {
  const moods = ['slow', 'failing', 'full', 'cut'] as const
  return {
    async database() {
      postgres.crash()
      await delay(random(1000))
      postgres.start()
    },
    /** The jump as leases see it: all expire at once, or last an hour longer until renewed. */
    async 'database clock'() {
      const hours = random(2) === 0 ? -1 : 1
      const sql = "update worker set expires = expires + $1 * interval '1 hour'"
      await retried(() => database.query(sql, [hours]))
      await delay(500 + random(1500))
    },
    ...Object.fromEntries(
      moods.map((mood) => [
        `storage ${mood}`,
        async () => {
          s3.mood = mood
          await delay(500 + random(1500))
          s3.mood = 'well'
        },
      ]),
    ),
  }
}

/** Waits until every session has a new confirmed turn, or a client reports an error. `what` is for the message. */
export async function untilAllWentOn(
  talks: readonly Talk[],
  failures: readonly unknown[],
  ms: number,
  what: string,
): Promise<void> {
  const before = talks.map(({ answers }) => answers.length)
  const end = performance.now() + ms
  while (failures.length === 0 && talks.some(({ answers }, at) => answers.length <= before[at]!)) {
    if (performance.now() > end) throw new Error(`a session stands still after ${what}`)
    await delay(20)
  }
}
