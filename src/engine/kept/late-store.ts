/**
 * A store that could not be opened because its disk was full or missing. The engine serves without it: calls that need
 * it are refused, and opening is tried again until it succeeds. From then on it is a store like any other.
 */
import { SkeinError } from '../../errors.ts'
import type { Snapshot } from '../../state/snapshot.ts'
import type {
  Claim,
  LeaseSight,
  ListPage,
  PrefixStore,
  SessionName,
  Store,
  StoreChange,
  StoredSession,
  Usage,
} from '../../state/store/store.ts'

interface LateOptions {
  /** Makes namespaces until the store's own secret is known; only prefixes are kept under it. */
  readonly secret: Uint8Array
  readonly open: () => Promise<Store>
  readonly retryMs: number
  readonly onOpen: () => void
}

/**
 * Errors that pass when the disk is back or has room. A folder that belongs to another server, or is damaged, does not
 * mend itself.
 */
export const NO_DISK =
  /\b(?:ENOSPC|EDQUOT|EIO|EROFS|EMFILE|ENFILE)\b|disk is full|disk I\/O error|unable to open database file|readonly database/

export class LateStore implements Store {
  readonly #options: LateOptions
  #store: Store | null = null
  #problem: SkeinError
  #timer: NodeJS.Timeout | null = null
  /** The attempt that is under way. */
  #opening: Promise<void> = Promise.resolve()
  #isClosed = false

  constructor(problem: SkeinError, options: LateOptions) {
    this.#options = options
    this.#problem = problem
    this.#tryLater()
  }

  get isDown(): boolean {
    return this.#store === null
  }

  get secret(): Uint8Array {
    return this.#store?.secret ?? this.#options.secret
  }

  get prefixes(): PrefixStore | undefined {
    return this.#store?.prefixes
  }

  get lease(): LeaseSight | null {
    return this.#store?.lease ?? null
  }

  load(key: string, namespace: string): Promise<Snapshot> {
    return this.#ask((store) => store.load(key, namespace))
  }

  claim(name: SessionName, mayCreate: boolean): Promise<Claim> {
    return this.#ask((store) => store.claim(name, mayCreate))
  }

  find(name: SessionName): Promise<StoredSession | null> {
    return this.#ask((store) => store.find(name))
  }

  list(namespace: string, page: ListPage): Promise<readonly StoredSession[]> {
    return this.#ask((store) => store.list(namespace, page))
  }

  usage(namespace: string): Promise<Usage> {
    return this.#ask((store) => store.usage(namespace))
  }

  expire(): Promise<void> {
    return this.#ask((store) => store.expire())
  }

  commit(change: StoreChange): Promise<readonly SessionName[]> {
    return this.#ask((store) => store.commit(change))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    if (this.#timer !== null) clearTimeout(this.#timer)
    await this.#opening
    await this.#store?.close()
  }

  async #ask<T>(work: (store: Store) => Promise<T>): Promise<T> {
    if (this.#store !== null) return work(this.#store)
    const { code, message } = this.#problem
    throw new SkeinError(
      'state_unavailable',
      `sessions are unavailable until the store can be opened (${code === 'state_unavailable' ? message : 'its disk cannot be used'}); requests without one are answered`,
    )
  }

  #tryLater(): void {
    this.#timer = setTimeout(() => {
      this.#opening = this.#try()
    }, this.#options.retryMs).unref()
  }

  async #try(): Promise<void> {
    try {
      this.#store = await this.#options.open()
      this.#options.onOpen()
    } catch (error) {
      this.#problem = SkeinError.from(error)
      if (!this.#isClosed) this.#tryLater()
    }
  }
}
