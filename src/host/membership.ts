/** What every member of a cluster has, node or gateway: the database, the named keys and their limits in it, and the seal of members. */
import { ClusterBatchStore } from '../batches/cluster-store.ts'
import type { BatchStore } from '../batches/store.ts'
import { Database } from '../cluster/database.ts'
import { Members } from '../cluster/members.ts'
import type { SkeinError } from '../errors.ts'
import { CallerSeal } from '../gateway/access/caller-seal.ts'
import { SharedKeyRing } from '../gateway/access/keys-shared.ts'
import { SharedRates } from '../gateway/access/rates-shared.ts'
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

/** Files and batches of a node: kept where all nodes find them, and run on whichever nodes have room. */
export interface ClusterBatches {
  readonly store: BatchStore
  readonly rows: ClusterRows
  close(): void
}

/** `blobs`: the address of the storage. */
export async function openClusterBatches(
  { database, seal }: Pick<Membership, 'database' | 'seal'>,
  blobs: string,
): Promise<ClusterBatches> {
  const members = new Members(database)
  const models = clusterRegistry(() => members.list)
  const rows = new ClusterRows({ nodes: nodesOf(() => members.list), models, seal })
  const store = new ClusterBatchStore(database, openBlobs(blobs))
  await members.start()
  return {
    store,
    rows,
    close: () => {
      members.close()
      rows.close()
    },
  }
}
