/** A state as a store has kept it, and whether it is the one that is wanted. */
import { SkeinError } from '../../errors.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import { decodeSnapshot, viewSnapshot } from '../snapshot-file.ts'

export interface Wanted {
  readonly key: string
  readonly namespace: string
  readonly identity: ModelIdentity
}

/**
 * Throws state_unavailable for another's, state_incompatible for another model's, invalid_request for a damaged one.
 * `mayView`: the state is a view of the file, which nobody changes.
 */
export function readStored(
  file: Uint8Array,
  { key, namespace, identity }: Wanted,
  mayView = false,
): Snapshot {
  const { snapshot, header } = (mayView ? viewSnapshot : decodeSnapshot)(file, identity)
  if (header.namespace !== namespace) {
    throw new SkeinError('state_unavailable', 'it belongs to another tenant')
  }
  if (header.key !== undefined && header.key !== key) {
    throw new SkeinError('state_unavailable', 'another state is in its place')
  }
  return snapshot
}
