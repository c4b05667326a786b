/**
 * What every member of a cluster has, node or gateway: the database, the named keys with their limits, and the seal of
 * members.
 */
import { ClusterBatchStore } from '../batches/cluster-store.ts'
import type { BatchStore } from '../batches/store.ts'
import { Database } from '../cluster/database.ts'
import { Members } from '../cluster/members.ts'
import type { SkeinError } from '../errors.ts'
import { CallerSeal } from '../gateway/access/caller-seal.ts'
import { SharedKeyRing } from '../gateway/access/keys-shared.ts'
import { SharedRates } from '../gateway/access/rate-limits.ts'
import { ClusterRows } from '../gateway/cluster/batch-rows.ts'
import { nodesOf } from '../gateway/cluster/nodes.ts'
import { clusterRegistry } from '../gateway/cluster/registry.ts'
import { openBlobs } from '../state/shared/open-blobs.ts'
import type { ClusterChoice } from './model-choice.ts'

export interface Membership {
  readonly database: Database
  readonly keyRing: SharedKeyRing
  readonly seal: CallerSeal
  readonly rates: SharedRates
}

/** Connects, and creates the tables on first use. `onProblem` is called when the keys cannot be read any more. */
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

/** Files and batches of a node: stored where all nodes find them, and run on any node with room. */
export interface ClusterBatches {
  readonly store: BatchStore
  readonly rows: ClusterRows
  close(): void
}

/** A node lists the members only while it runs batches. */
const FRESH_MS = 2000

/** `blobs`: the address of the storage. */
export function openClusterBatches(
  { database, seal }: Pick<Membership, 'database' | 'seal'>,
  blobs: string,
): ClusterBatches {
  const members = new Members(database)
  let askedAt = Number.NEGATIVE_INFINITY
  const membersNow = () => {
    if (performance.now() - askedAt > FRESH_MS) {
      askedAt = performance.now()
      // Until the result is there, the previous list is good enough.
      members.refresh().catch(() => {})
    }
    return members.list
  }
  const nodes = nodesOf(membersNow)
  const rows = new ClusterRows({ nodes, models: clusterRegistry(membersNow), seal })
  const store = new ClusterBatchStore(database, openBlobs(blobs))
  return { store, rows, close: () => rows.close() }
}
