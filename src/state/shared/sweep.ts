/** Removes what crashes have left: blobs that no state and no file is in, and states that no session uses. */
import type { Database } from '../../cluster/database.ts'
import { forgetOldMoves } from '../../cluster/moves.ts'
import type { Blobs } from './blobs.ts'
import { removeIdle } from './prefixes.ts'
import { removeStale, wanted } from './rows.ts'

/** Longer than any write takes, by any clock: the storage's is not ours. */
const AGE_MS = 24 * 3_600_000
const NAMES_AT_ONCE = 1000

/** By one worker of the cluster an hour. */
export async function sweepWhenDue(database: Database, blobs: Blobs): Promise<void> {
  const sql = "update cluster set swept = now() where swept < now() - interval '1 hour'"
  const { count } = await database.query(sql)
  if (count === 0) return
  await forgetOldMoves(database)
  for (const blob of await removeIdle(database)) await blobs.remove(blob)
  await sweep(database, blobs)
}

/** Returns how many blobs it has removed. */
export async function sweep(database: Database, blobs: Blobs, ageMs = AGE_MS): Promise<number> {
  for (const blob of await removeStale(database, ageMs)) await blobs.remove(blob)
  const end = Date.now() - ageMs
  let old: string[] = []
  let count = 0
  const removeOrphans = async () => {
    const named = await wanted(database, old)
    const orphans = old.filter((name) => !named.has(name))
    old = []
    for (const name of orphans) await blobs.remove(name)
    count += orphans.length
  }
  for await (const { name, changedAt } of blobs.list()) {
    if (changedAt > end) continue
    old.push(name)
    if (old.length >= NAMES_AT_ONCE) await removeOrphans()
  }
  await removeOrphans()
  return count
}
