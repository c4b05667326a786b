/** What every member of a cluster has, node or gateway: the database, the named keys in it, and the seal of members. */
import { Database } from '../cluster/database.ts'
import type { SkeinError } from '../errors.ts'
import { CallerSeal } from '../gateway/access/caller-seal.ts'
import { SharedKeyRing } from '../gateway/access/keys-shared.ts'
import type { ClusterChoice } from './load.ts'

export interface Membership {
  readonly database: Database
  readonly keyRing: SharedKeyRing
  readonly seal: CallerSeal
}

/** Connects, and makes the tables on first use. `onProblem` is told when the keys cannot be read any more. */
export async function joinCluster(
  { database: url, key }: Pick<ClusterChoice, 'database' | 'key'>,
  onProblem: (error: SkeinError) => void,
): Promise<Membership> {
  const database = await Database.open(url)
  try {
    const keyRing = await SharedKeyRing.open(database, onProblem)
    return { database, keyRing, seal: new CallerSeal(key ?? database.secret) }
  } catch (error) {
    await database.close()
    throw error
  }
}
