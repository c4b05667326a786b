/**
 * Prefixes that the workers of a model share through their store. A request waits for a prefix where fetching it is
 * quicker than reading it, judging by recent times of both. What several requests began with is published, where others
 * would gain by it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { MIN_PREFIX_TOKENS, type Prefix, type PrefixCache } from '../../state/prefix-cache.ts'
import type { PrefixStore, Store } from '../../state/store/store.ts'

/** A fetch must be this much quicker than reading: the estimate is rough, and a fetch costs others something too. */
const MARGIN = 1.5
/** Assumed before a prompt was read here: between a processor and a small GPU. */
const FIRST_MS_PER_TOKEN = 1
/** Shorter prompts are read in one step, so they tell how long a step takes and not how long reading takes. */
const TELLING_TOKENS = 256
const TELLING_MS = 100
/** Weight of older measurements beside a new one. */
const MEMORY = 0.8
/**
 * Expected time of a fetch: the state of a 7B model comes in a tenth of a second from a folder, or from memory to
 * memory.
 */
const FETCH_MS = 10
const FETCH_MS_PER_BYTE = 2.6e-6
/** Measured fetch times lose half their weight in this time: a storage that was slow may have recovered. */
const FORGET_MS = 10 * 60_000
const MAX_WAIT_MS = 2000
const PAUSE_MS = 10_000
/** A prefix is published once this many requests, besides the one that read it, began with it. */
const SHARED_BY = 2
/** Well below the hour after which an unused prefix is removed. */
const TELL_AGAIN_MS = 20 * 60_000

export class PrefixSharing {
  readonly counters = { prefixFetches: 0, prefixesPublished: 0 }
  readonly #store: Store
  readonly #cache: PrefixCache
  readonly #bytes: number
  readonly #read = { tokens: 0, ms: 0 }
  /** How long fetches took, as a multiple of the expected time, and when that was measured. */
  #slowness = 1
  #learntAt = 0
  #pausedUntil = 0
  /** Running fetches, by what their prompts begin with. */
  readonly #fetching = new Map<string, Promise<void>>()
  #publishing: Promise<void> | null = null

  /** `bytes`: size of a state. */
  constructor(store: Store, cache: PrefixCache, bytes: number) {
    this.#store = store
    this.#cache = cache
    this.#bytes = bytes
  }

  /** `tokens` of a prompt were read in `ms` milliseconds after its admission. */
  learn(tokens: number, ms: number): void {
    if (tokens < TELLING_TOKENS && ms < TELLING_MS) return
    this.#read.tokens = MEMORY * this.#read.tokens + tokens
    this.#read.ms = MEMORY * this.#read.ms + ms
  }

  /** Resolves when a longer prefix than the one here has arrived or is not worth waiting for; null: none can be had. */
  coming(namespace: string, prompt: Int32Array): Promise<void> | null {
    const { prefixes } = this.#store
    if (prefixes === undefined || performance.now() < this.#pausedUntil) return null
    const most = prompt.length - 1
    const cached = this.#cache.lengthOf(namespace, prompt, most)
    const least = Math.max(MIN_PREFIX_TOKENS, cached + this.#worthwhileTokens)
    if (most < least) return null
    const begins = `${namespace} ${prompt.subarray(0, MIN_PREFIX_TOKENS)}`
    let fetching = this.#fetching.get(begins)
    if (fetching === undefined) {
      fetching = this.#fetch(prefixes, namespace, prompt, least).finally(() => this.#fetching.delete(begins))
      this.#fetching.set(begins, fetching)
    }
    return withinMs(fetching, Math.min(MAX_WAIT_MS, (most - cached) * this.#msPerToken))
  }

  /** A request began with it. */
  used(prefix: Prefix): void {
    const { prefixes } = this.#store
    const now = performance.now()
    const isShared = prefix.numFound >= SHARED_BY && prefix.tokens.length >= this.#worthwhileTokens
    if (prefixes === undefined || !isShared || now < this.#pausedUntil) return
    const isTold = prefix.toldAt !== null && now - prefix.toldAt < TELL_AGAIN_MS
    if (isTold || this.#publishing !== null) return
    prefix.toldAt = now
    const { namespace, tokens, state } = prefix
    this.#publishing = prefixes
      .publish({ namespace, tokens, floats: state })
      .then(
        () => {
          this.counters.prefixesPublished++
        },
        () => this.#pause(),
      )
      .finally(() => {
        this.#publishing = null
      })
  }

  /** An answer that began with this prefix was wrong: remove it. */
  async distrust({ namespace, tokens, toldAt }: Prefix): Promise<void> {
    if (toldAt === null) return
    await this.#publishing
    await this.#store.prefixes?.remove(namespace, tokens).catch(() => {})
  }

  get #msPerToken(): number {
    const { tokens, ms } = this.#read
    return tokens === 0 ? FIRST_MS_PER_TOKEN : ms / tokens
  }

  /** Prompts longer than this take longer to read than their state takes to fetch. */
  get #worthwhileTokens(): number {
    const forgotten = 2 ** (-(performance.now() - this.#learntAt) / FORGET_MS)
    const slowness = 1 + (this.#slowness - 1) * forgotten
    return Math.ceil((MARGIN * slowness * this.#expectedMs) / this.#msPerToken)
  }

  get #expectedMs(): number {
    return FETCH_MS + FETCH_MS_PER_BYTE * this.#bytes
  }

  async #fetch(prefixes: PrefixStore, namespace: string, prompt: Int32Array, least: number): Promise<void> {
    const began = performance.now()
    try {
      const found = await prefixes.find(namespace, prompt, least)
      if (found === null) return
      this.counters.prefixFetches++
      const prefix = this.#cache.add(namespace, found.tokens, found.state)
      prefix.toldAt = performance.now()
      const measured = (performance.now() - began) / this.#expectedMs
      this.#slowness = MEMORY * this.#slowness + (1 - MEMORY) * measured
      this.#learntAt = performance.now()
    } catch {
      this.#pause()
    }
  }

  /** The database or the storage is unreachable: stop asking for a while. */
  #pause(): void {
    this.#pausedUntil = performance.now() + PAUSE_MS
  }
}

async function withinMs(work: Promise<void>, ms: number): Promise<void> {
  const timer = new AbortController()
  const { signal } = timer
  await Promise.race([work, delay(ms, undefined, { signal, ref: false }).catch(() => {})])
  timer.abort()
}
