/** Named keys as requests are checked against them, wherever their list is kept. */
import { timingSafeEqual } from 'node:crypto'
import type { KeyRecord } from './keys.ts'

export interface FollowedKey {
  readonly key: KeyRecord
  /** The end of the secret that was shown: its grace is over. */
  readonly isOver: boolean
}

/** A list of named keys that others change too. */
export interface NamedKeys {
  readonly keys: readonly KeyRecord[]
  /** There has been a key since the start. Revoking the last one must not open what it closed. */
  readonly isInUse: boolean
  /** The key with a secret of this SHA-256, in a time that does not tell how close it was. */
  find(digest: Buffer): FollowedKey | null
  /** Looks whether others have changed the list. */
  refresh(): void | Promise<void>
  /** Replaces the list by what `change` makes of it; gives back what `change` gives. Nothing is written when it throws. */
  change<T extends { readonly keys: readonly KeyRecord[] }>(change: (keys: readonly KeyRecord[]) => T): Promise<T>
}

export class KeyIndex {
  #keys: readonly KeyRecord[] = []
  /** Each secret's digest beside its key. */
  #digests: readonly {
    readonly digest: Buffer
    readonly until: number | null
    readonly key: KeyRecord
  }[] = []
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
    for (const { digest: known, until, key } of this.#digests) {
      if (timingSafeEqual(known, digest)) {
        found = { key, isOver: until !== null && until <= Date.now() }
      }
    }
    return found
  }
}
