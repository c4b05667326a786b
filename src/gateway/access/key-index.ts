/** An index of named keys for checking requests, wherever their list is stored. */
import { timingSafeEqual } from 'node:crypto'
import type { KeyRecord } from './keys.ts'

export interface FollowedKey {
  readonly key: KeyRecord
  /** The secret was replaced, and its grace period has ended. */
  readonly isOver: boolean
}

/** A list of named keys that others may change, too. */
export interface NamedKeys {
  readonly keys: readonly KeyRecord[]
  /** There has been a key since the start. Revoking the last one must not open the server. */
  readonly isInUse: boolean
  /** Finds the key with a secret of this SHA-256, in constant time. */
  find(digest: Buffer): FollowedKey | null
  refresh(): void | Promise<void>
  /** Replaces the list with the result of `change`, and returns that result. Nothing is written if it throws. */
  change<T extends { readonly keys: readonly KeyRecord[] }>(change: (keys: readonly KeyRecord[]) => T): Promise<T>
}

export class KeyIndex {
  #keys: readonly KeyRecord[] = []
  /** Digest of each secret, with its key. */
  #digests: readonly { readonly digest: Buffer; readonly until: number | null; readonly key: KeyRecord }[] = []
  #isInUse = false

  get keys(): readonly KeyRecord[] {
    return this.#keys
  }

  get isInUse(): boolean {
    return this.#isInUse
  }

  replace(keys: readonly KeyRecord[]): void {
    this.#keys = keys
    this.#isInUse ||= keys.length > 0
    this.#digests = keys.flatMap((key) =>
      key.secrets.map(({ sha256, until }) => ({ digest: Buffer.from(sha256, 'hex'), until, key })),
    )
  }

  find(digest: Buffer): FollowedKey | null {
    let found: FollowedKey | null = null
    for (const { digest: known, until, key } of this.#digests)
      if (timingSafeEqual(known, digest)) found = { key, isOver: until !== null && until <= Date.now() }
    return found
  }
}
