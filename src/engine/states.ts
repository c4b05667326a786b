/**
 * Kept states as the engine uses them: which one a request begins with, where copies are taken while a prompt is read,
 * and what is kept when an answer ends. It works between the parts of a step and never waits; what is kept, where, and
 * for how long is src/state/.
 */
import { randomBytes } from 'node:crypto'
import type { Runner } from '../model/runner.ts'
import { namespaceOf, SECRET_BYTES } from '../state/namespace.ts'
import { MIN_PREFIX_TOKENS, type Prefix, PrefixCache } from '../state/prefix-cache.ts'
import { joinTokens } from '../state/snapshot.ts'
import type { GenerateRequest, StateStats } from './messages.ts'
import type { LiveRequest, Sequence, Start } from './sequence.ts'
import { snapshotPoints } from './snapshot-points.ts'

export interface StateOptions {
  /** Memory for prompt prefixes; 0 keeps none. */
  readonly prefixBytes: number
  /**
   * Milliseconds of a step that copies of states may take. The first copy of a step is always made; what finds no time
   * after it is not kept.
   */
  readonly copyBudgetMs: number
}

export const DEFAULT_STATE_OPTIONS: StateOptions = {
  prefixBytes: 1 << 30,
  copyBudgetMs: 4,
}

/** What a live request has to do with kept states. */
interface Use {
  readonly namespace: string
  /** Prompt tokens not computed. */
  readonly cachedTokens: number
  /** Prefixes it was begun with and has added: not to be trusted if it fails. */
  readonly prefixes: Prefix[]
}

export class States {
  readonly #runner: Runner
  readonly #options: StateOptions
  readonly #prefixes: PrefixCache
  readonly #secret: Uint8Array = randomBytes(SECRET_BYTES)
  readonly #uses = new WeakMap<LiveRequest, Use>()
  #copyMs = 0
  readonly #counters = { cachedTokens: 0, prefixHits: 0, prefixMisses: 0 }

  constructor(runner: Runner, options: StateOptions) {
    this.#runner = runner
    this.#options = options
    this.#prefixes = new PrefixCache(options.prefixBytes)
  }

  get stats(): StateStats {
    const { count, bytes } = this.#prefixes
    return { ...NO_SESSIONS, prefixes: count, prefixBytes: bytes, ...this.#counters }
  }

  beginStep(): void {
    this.#copyMs = 0
  }

  /** At admission: the longest kept prefix of the prompt, and where copies will be taken of the rest. */
  startOf(live: LiveRequest): Start | null {
    const { prompt, request } = live
    if (!this.#usesPrefixes(request)) return null
    const namespace = this.#namespaceOf(request)
    // Scoring needs the logits after every token. Otherwise one token is left to be fed, to draw from.
    const isScored = request.promptLogprobs !== null
    const found = isScored ? null : this.#prefixes.find(namespace, prompt, prompt.length - 1)
    const cachedTokens = found?.tokens.length ?? 0
    live.points = snapshotPoints(prompt.length, cachedTokens, request.boundaries ?? NONE)
    this.#uses.set(live, { namespace, cachedTokens, prefixes: found ? [found] : [] })
    this.#counters.cachedTokens += cachedTokens
    if (found !== null) this.#counters.prefixHits++
    else if (prompt.length > MIN_PREFIX_TOKENS) this.#counters.prefixMisses++
    if (found === null) return null
    const { state } = found
    return { numTokens: cachedTokens, place: (slot) => this.#runner.writeState(slot, state) }
  }

  /** What the prompt event says of the start. */
  usageOf(live: LiveRequest): { readonly cachedTokens: number } | undefined {
    const use = this.#uses.get(live)
    return use && { cachedTokens: use.cachedTokens }
  }

  /** After prompt tokens were fed: takes a copy if this is a point for one. */
  atPoint(live: LiveRequest): void {
    if (live.numFed !== live.points[0]) return
    live.points = live.points.slice(1)
    this.#keepPrefix(live, live.prompt.subarray(0, live.numFed), live.sequences[0]!.slot!)
  }

  /** Before the slot of an answer that ended is freed. */
  answerEnds({ owner, drawn, slot }: Sequence): void {
    const consumed = joinTokens(owner.prompt, drawn.slice(0, -1))
    this.#keepPrefix(owner, consumed, slot!)
  }

  /** A request's numbers were not finite: nothing it has kept or begun with is used again. */
  distrust(live: LiveRequest): void {
    for (const prefix of this.#uses.get(live)?.prefixes ?? []) this.#prefixes.delete(prefix)
  }

  #usesPrefixes(request: GenerateRequest): boolean {
    return this.#options.prefixBytes > 0 && request.cache !== 'no-store'
  }

  #namespaceOf(request: GenerateRequest): string {
    return namespaceOf(this.#secret, request.tenant ?? '', request.startState ?? '')
  }

  /** Copies the state of a slot that has consumed exactly `tokens`. */
  #keepPrefix(live: LiveRequest, tokens: Int32Array, slot: number): void {
    const use = this.#uses.get(live)
    if (use === undefined || tokens.length < MIN_PREFIX_TOKENS) return
    if (this.#prefixes.has(use.namespace, tokens) || !this.#mayCopy()) return
    const started = performance.now()
    const state = this.#runner.readState(slot)
    use.prefixes.push(this.#prefixes.add(use.namespace, tokens, state))
    this.#copyMs += performance.now() - started
  }

  #mayCopy(): boolean {
    return this.#copyMs === 0 || this.#copyMs < this.#options.copyBudgetMs
  }
}

const NONE = new Int32Array(0)

const NO_SESSIONS = {
  sessions: 0,
  inSlots: 0,
  inMemory: 0,
  onDisk: 0,
  unsaved: 0,
  saves: 0,
  failedSaves: 0,
  loads: 0,
}
