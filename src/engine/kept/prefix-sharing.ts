/**
 * Prefixes that workers of a model share through their store. A request waits for one where fetching it beats reading it, by what
 * both have taken here lately; what several requests began with is published, where others would gain by it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { MIN_PREFIX_TOKENS, type Prefix, type PrefixCache } from '../../state/prefix-cache.ts'
import type { PrefixStore, Store } from '../../state/store/store.ts'

/** A fetch is to be so much quicker than reading: it is a guess, and costs others something, too. */
const MARGIN = 1.5
/** Before a prompt was read here: between a processor and a small GPU. */
const FIRST_MS_PER_TOKEN = 1
/** Shorter prompts that are read at once say how long a step takes, not how long reading does. */
const TELLING_TOKENS = 256
const TELLING_MS = 100
/** Of what was measured before, this much counts beside what comes. */
const MEMORY = 0.8
/** A state of a 7B model comes in a tenth of a second from a folder, or from memory to memory. */
const FETCH_MS = 10
const FETCH_MS_PER_BYTE = 2.6e-6
/** What fetches took counts half after so long: a storage that was slow need not be. */
const FORGET_MS = 10 * 60_000
const MAX_WAIT_MS = 2000
const PAUSE_MS = 10_000
/** Requests that began with it, beside the one that read it. */
const SHARED_BY = 2
/** Well below the hour after which a prefix goes that nobody uses. */
const TELL_AGAIN_MS = 20 * 60_000

export class PrefixSharing {
  readonly counters = { prefixFetches: 0, prefixesPublished: 0 }
  readonly #store: Store
  readonly #cache: PrefixCache
  readonly #bytes: number
  readonly #read = { tokens: 0, ms: 0 }
  /** How long fetches took, in multiples of what is expected, and when that was learnt. */
  #slowness = 1
  #learntAt = 0
  #pausedUntil = 0
  /** By what their prompts begin with. */
  readonly #fetching = new Map<string, Promise<void>>()
  #publishing: Promise<void> | null = null

  /** `bytes`: of a state. */
  constructor(store: Store, cache: PrefixCache, bytes: number) {
    this.#store = store
    this.#cache = cache
    this.#bytes = bytes
  }

  /** So many tokens of a prompt were read in so long, from its admission on. */
  learn(tokens: number, ms: number): void {
    if (tokens < TELLING_TOKENS && ms < TELLING_MS) return
    this.#read.tokens = MEMORY * this.#read.tokens + tokens
    this.#read.ms = MEMORY * this.#read.ms + ms
  }

  /** Resolves when a longer prefix than there is here has come, or is not worth waiting for; null: none is to be had. */
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
      fetching = this.#fetch(prefixes, namespace, prompt, least).finally(() =>
        this.#fetching.delete(begins),
      )
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

  /** What came of it was wrong. */
  async distrust({ namespace, tokens, toldAt }: Prefix): Promise<void> {
    if (toldAt === null) return
    await this.#publishing
    await this.#store.prefixes?.remove(namespace, tokens).catch(() => {})
  }

  get #msPerToken(): number {
    const { tokens, ms } = this.#read
    return tokens === 0 ? FIRST_MS_PER_TOKEN : ms / tokens
  }

  /** Tokens that take longer to read than their state takes to fetch. */
  get #worthwhileTokens(): number {
    const forgotten = 2 ** (-(performance.now() - this.#learntAt) / FORGET_MS)
    const slowness = 1 + (this.#slowness - 1) * forgotten
    return Math.ceil((MARGIN * slowness * this.#expectedMs) / this.#msPerToken)
  }

  get #expectedMs(): number {
    return FETCH_MS + FETCH_MS_PER_BYTE * this.#bytes
  }

  async #fetch(
    prefixes: PrefixStore,
    namespace: string,
    prompt: Int32Array,
    least: number,
  ): Promise<void> {
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

  /** The database or the storage is not there: nobody is to wait for it again and again. */
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
