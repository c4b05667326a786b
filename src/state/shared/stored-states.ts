/** States as a shared store has them: small ones in rows of its database, large ones as blobs. */
import { randomBytes } from 'node:crypto'
import type { Connection } from '../../cluster/database.ts'
import { SkeinError } from '../../errors.ts'
import { joinBytes } from '../../files/bytes.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import { snapshotParts } from '../snapshot-file.ts'
import { readStored, type StatePut, type Wanted } from '../store/store.ts'
import type { Blobs } from './blobs.ts'
import * as rows from './rows.ts'

interface StoredStatesOptions {
  readonly database: Connection
  readonly blobs: Blobs
  readonly identity: ModelIdentity
  /** Larger states are blobs. */
  readonly maxInlineBytes: number
}

export class StoredStates {
  readonly #options: StoredStatesOptions

  constructor(options: StoredStatesOptions) {
    this.#options = options
  }

  /** The row that a state is to have. Its blob, if it needs one, is kept. */
  async put({ key, floats, namespace, isForeign, ...text }: StatePut): Promise<rows.StoredState> {
    const { identity, maxInlineBytes, blobs } = this.#options
    const parts = snapshotParts({ ...text, floats }, identity, { namespace, isForeign, key })
    const size = parts.reduce((sum, part) => sum + part.length, 0)
    if (size <= maxInlineBytes) return { key, inline: joinBytes(parts), blob: null }
    const blob = randomBytes(16).toString('hex')
    await blobs.put(blob, parts)
    return { key, inline: null, blob }
  }

  async get(key: string, namespace: string): Promise<Snapshot> {
    const { identity, database, blobs } = this.#options
    const of: Wanted = { key, namespace, identity }
    const found = await rows.stateOf(database, key)
    if (found === null) throw new SkeinError('state_unavailable', 'it is not there')
    // What the driver gives is part of its own memory.
    if (found.inline !== null) return readStored(found.inline, of)
    return readStored(await blobs.get(found.blob!), of, true)
  }

  /** Those of the states that nothing needs, and blobs of states that never got a row. */
  async removeUnused(keys: readonly string[], others: readonly string[] = []): Promise<void> {
    const { database, blobs } = this.#options
    const unused = [...(await rows.removeUnused(database, keys)), ...others]
    await Promise.all(unused.map((blob) => blobs.remove(blob)))
  }
}
