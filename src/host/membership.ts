/** What every member of a cluster has, node or gateway: the database, the named keys and their limits in it, and the seal of members. */
import { Database } from '../cluster/database.ts'
import type { SkeinError } from '../errors.ts'
import { CallerSeal } from '../gateway/access/caller-seal.ts'
import { SharedKeyRing } from '../gateway/access/keys-shared.ts'
import { SharedRates } from '../gateway/access/rates-shared.ts'
import type { ClusterChoice } from './model-choice.ts'

export interface Membership {
  readonly database: Database
  readonly keyRing: SharedKeyRing
  readonly seal: CallerSeal
  readonly rates: SharedRates
}

/** Connects, and makes the tables on first use. `onProblem` is told when the keys cannot be read any more. */
export async function joinCluster(
  { database: url, key }: Pick<ClusterChoice, 'database' | 'key'>,
  onProblem: (error: SkeinError) => void,
): Promise<Membership> {
  const database = await Database.open(url)
  try {
    const keyRing = await SharedKeyRing.open(database, onProblem)
    const seal = new CallerSeal(key ?? database.secret)
    return { database, keyRing, seal, rates: new SharedRates(database) }
  } catch (error) {
    await database.close()
    throw error
  }
}
