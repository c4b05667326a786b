/**
 * Kept states as the engine uses them: which one a request begins with, where copies are taken while a prompt is read,
 * and what is kept when an answer ends. It works between the parts of a step and never waits; what is kept, where, and
 * for how long is src/state/.
 */
import { randomBytes } from 'node:crypto'
import type { SkeinError } from '../errors.ts'
import { type Runner, stateBytesOf } from '../model/runner.ts'
import { namespaceOf, SECRET_BYTES, sessionNamespace } from '../state/namespace.ts'
import { MIN_PREFIX_TOKENS, type Prefix, PrefixCache } from '../state/prefix-cache.ts'
import { joinTokens } from '../state/snapshot.ts'
import type { Store } from '../state/store/store.ts'
import type { TokenBytes } from './answer/answer-text.ts'
import { identityOf } from './kept/identity.ts'
import { PrefixSharing } from './kept/prefix-sharing.ts'
import { snapshotPoints } from './kept/snapshot-points.ts'
import type { Start } from './kept/start.ts'
import type { EngineEvent, GenerateRequest, SessionPosition } from './messages.ts'
import type { LiveRequest, Sequence } from './sequence.ts'
import { type SessionHandlers, sessionCalls } from './sessions/calls.ts'
import { type SessionOptions, SessionTurns } from './sessions/turns.ts'
import type { Opening } from './sessions/writers.ts'
import type { SlotPool } from './slots.ts'
import type { Read, ReadEvents, StateTransfers } from './state-transfers.ts'
import type { StateStats } from './stats.ts'

export interface StateOptions extends SessionOptions {
  /** Hash of the vocabulary. */
  readonly vocabulary: string
  /** Memory for prompt prefixes; 0 keeps none. */
  readonly prefixBytes: number
}

/** In memory only, for a vocabulary without a name. */
export const DEFAULT_STATE_OPTIONS: StateOptions = {
  vocabulary: '',
  store: null,
  isDurable: false,
  acceptsForeign: true,
  now: Date.now,
  prefixBytes: 2 ** 30,
  sizes: { slots: 16, memory: { count: 32, bytes: Number.POSITIVE_INFINITY } },
  limits: { maxSessions: 10_000, maxBytes: 64 * 2 ** 30, maxTurns: 16, ttlMs: null },
}

/** How the end of an answer is reported: with its turn, if it became one, or with why it could not be kept. */
type Report = (session: SessionPosition | null, error: SkeinError | null) => void

/** What a live request has to do with kept states. */
interface Use {
  /** Namespace of the request's prefixes; null where none are kept. */
  readonly namespace: string | null
  /** Prompt tokens not computed. */
  readonly cachedTokens: number
  readonly admittedAt: number
  /** Prefixes it was begun with and has added: not to be trusted if it fails. */
  readonly prefixes: Prefix[]
}

/** A prefix whose state is on its way out of its slot. */
interface Coming {
  readonly use: Use
  readonly tokens: Int32Array
  read: Read | null
}

/** Prefixes on their way at a time: half the lanes of a GPU, so that sessions find one free. Each takes two or three steps. */
const MAX_COMING = 8

export class States {
  /** What may be asked about sessions. */
  readonly calls: SessionHandlers
  /** There is room for one at least. */
  readonly #keepsPrefixes: boolean
  readonly #transfers: StateTransfers
  readonly #prefixes: PrefixCache
  /** Null without a store. */
  readonly #sharing: PrefixSharing | null
  readonly #coming = new Set<Coming>()
  readonly #turns: SessionTurns
  readonly #store: Store | null
  readonly #wake: () => void
  readonly #ownSecret = randomBytes(SECRET_BYTES)
  readonly #uses = new WeakMap<LiveRequest, Use>()
  readonly #counters = { cachedTokens: 0, prefixHits: 0, prefixMisses: 0 }

  /** `wake` is called when something came between steps that makes work for the next one. */
  constructor(
    runner: Runner,
    slots: SlotPool,
    transfers: StateTransfers,
    tokenBytes: TokenBytes,
    options: StateOptions,
    wake: () => void,
  ) {
    const { store, isDurable, prefixBytes, vocabulary } = options
    const bytesPerState = stateBytesOf(runner.info.stateShape)
    this.#keepsPrefixes = prefixBytes >= bytesPerState
    this.#transfers = transfers
    this.#prefixes = new PrefixCache(prefixBytes, (state) => transfers.giveBack(state))
    this.#sharing = store && new PrefixSharing(store, this.#prefixes, bytesPerState)
    this.#store = store
    this.#wake = wake
    this.#turns = new SessionTurns(runner, slots, transfers, tokenBytes, options, wake)
    this.calls = sessionCalls({
      turns: this.#turns,
      identity: identityOf(runner.info, vocabulary),
      vocabSize: runner.info.vocabSize,
      isDurable,
      acceptsForeign: options.acceptsForeign,
      namespaceOf: (tenant) => this.#sessionNamespace(tenant),
      sealKeyOf: (tenant) => namespaceOf(this.#secret, 'seal', tenant),
      linkKey: () => namespaceOf(this.#secret, 'link'),
    })
  }

  get stats(): StateStats {
    const { count, bytes } = this.#prefixes
    const { sessions, mover } = this.#turns
    const { tiers, saver } = mover
    return {
      sessions: sessions.count,
      inSlots: tiers.numInSlots,
      inMemory: tiers.numInMemoryOnly,
      onDisk: sessions.numStates - tiers.numInSlots - tiers.numInMemoryOnly,
      unsaved: saver?.numUnsaved ?? 0,
      prefixes: count,
      prefixBytes: bytes,
      ...this.#counters,
      ...(this.#sharing?.counters ?? { prefixFetches: 0, prefixesPublished: 0 }),
      ...(saver?.counters ?? { saves: 0, failedSaves: 0 }),
      loads: tiers.numLoads,
      storeFailing: this.#store?.isDown === true || saver?.hasFailed === true ? 1 : 0,
    }
  }

  /** Slots that hold kept states or copies and can be taken back. */
  get numKeptSlots(): number {
    return this.#turns.mover.numKeptSlots
  }

  /** Frees so many of these slots, now or soon. */
  giveUpSlots(count: number): void {
    this.#turns.mover.giveUpSlots(count)
  }

  /** There is work that waits for nothing. */
  get hasWork(): boolean {
    return this.#turns.mover.hasWork
  }

  /** A request with a session joins the waiting line when it is the writer and the state is at hand. May throw. */
  open(live: LiveRequest, opening: Opening): void {
    this.#turns.writers.open(live, this.#sessionNamespace(live.request.tenant ?? ''), opening)
  }

  /** Calls back when a prefix is here that others have read, or will not come: at once where there is none to wait for. */
  afterPrefix(live: LiveRequest, join: () => void): void {
    const coming = this.#comingPrefix(live)
    if (coming === null) join()
    else void coming.then(join).finally(this.#wake)
  }

  /** Background work that nobody waits for: states move out of slots and to the store. */
  tidy(): void {
    this.#turns.mover.tidy()
  }

  /** Without saving anything. */
  dispose(): void {
    this.#turns.dispose()
  }

  close(isSound: boolean): Promise<void> {
    this.dispose()
    return this.#turns.mover.close(isSound)
  }

  /**
   * At admission, when slots are free: the state of the session's turn, or the longest kept prefix of the prompt; null:
   * the empty state. `isBusy`: answers are being generated.
   */
  startOf(live: LiveRequest, isBusy: boolean): Start | null {
    const start = this.#turns.startOf(live)
    if (start === null) return this.#prefixOf(live, isBusy)
    this.#counters.cachedTokens += start.numTokens
    this.#uses.set(live, useOf(null, start.numTokens))
    return start
  }

  /** Also says where copies will be taken of what is not cached. */
  #prefixOf(live: LiveRequest, isBusy: boolean): Start | null {
    const { prompt, request } = live
    if (!this.#usesPrefixes(request)) return null
    const namespace = this.#prefixNamespace(live)
    // Scoring needs the logits after every token. Otherwise one token is left to be fed, to draw from.
    const isScored = request.promptLogprobs !== null
    const found = isScored ? null : this.#prefixes.find(namespace, prompt, prompt.length - 1)
    const cachedTokens = found?.tokens.length ?? 0
    live.points = snapshotPoints(prompt.length, {
      start: cachedTokens,
      shared: this.#prefixes.sharedLength(namespace, prompt),
      boundaries: request.boundaries ?? NONE,
      isBusy,
    })
    this.#uses.set(live, useOf(namespace, cachedTokens, found ? [found] : []))
    this.#counters.cachedTokens += cachedTokens
    if (found !== null) this.#counters.prefixHits++
    else if (prompt.length > MIN_PREFIX_TOKENS) this.#counters.prefixMisses++
    if (found === null) return null
    // Names of start states mean nothing elsewhere.
    if (live.start === null) this.#sharing?.used(found)
    const { state } = found
    return { numTokens: cachedTokens, take: () => state }
  }

  /** What the prompt event says of the start. */
  usageOf(live: LiveRequest): Pick<EngineEvent & { type: 'prompt' }, 'cachedTokens' | 'contextTokens' | 'session'> {
    const session = this.#turns.positionOf(live)
    return {
      cachedTokens: this.#uses.get(live)?.cachedTokens ?? 0,
      contextTokens: live.prompt.length,
      ...(session === null ? {} : { session }),
    }
  }

  /** All of it. */
  promptRead(live: LiveRequest): void {
    const use = this.#uses.get(live)
    if (use === undefined) return
    const ms = performance.now() - use.admittedAt
    this.#sharing?.learn(live.prompt.length - use.cachedTokens, ms)
  }

  /** After prompt tokens were launched: takes a copy if this is a point for one. What is fed later does not change it. */
  atPoint(live: LiveRequest): void {
    if (live.numFed !== live.points[0]) return
    live.points = live.points.slice(1)
    const slot = live.sequences[0]!.slot!
    this.#keepPrefix(live, live.prompt.subarray(0, live.numFed), (events) => this.#transfers.read(slot, events))
  }

  /** After a draw of an answer that may go on. */
  drew(sequence: Sequence): void {
    if (sequence.owner.request.session !== undefined) this.#turns.drew(sequence)
  }

  /** Before the slot of an answer that ended is freed; it may be kept. Reports once, now or when it is on disk. */
  answerEnds(sequence: Sequence, report: Report): void {
    const { owner, drawn, slot, numFed, isSpoilt } = sequence
    if (owner.request.session !== undefined) {
      this.#turns.end(sequence, report)
      return
    }
    if (slot !== null && !isSpoilt) {
      const tokens = joinTokens(owner.prompt, drawn.slice(0, numFed))
      this.#keepPrefix(owner, tokens, (events) => {
        sequence.slot = null
        return this.#transfers.readAndFree(slot, events)
      })
    }
    report(null, null)
  }

  /** The request is over before its answers are. */
  abandon(live: LiveRequest, isCancel: boolean): void {
    this.#turns.abandon(live, isCancel)
  }

  /** A request's numbers were not finite: nothing it has kept or begun with is used again. */
  distrust(live: LiveRequest): void {
    const use = this.#uses.get(live)
    for (const prefix of use?.prefixes ?? []) {
      this.#prefixes.delete(prefix)
      void this.#sharing?.distrust(prefix)
    }
    for (const coming of this.#coming) {
      if (coming.use !== use) continue
      this.#coming.delete(coming)
      coming.read?.cancel()
    }
  }

  #comingPrefix(live: LiveRequest): Promise<void> | null {
    const { request, prompt } = live
    const isItsOwn = this.#turns.writers.useOf(live)?.pinned != null || live.start !== null
    if (isItsOwn || request.promptLogprobs !== null || !this.#usesPrefixes(request)) return null
    return this.#sharing?.coming(this.#prefixNamespace(live), prompt) ?? null
  }

  #usesPrefixes(request: GenerateRequest): boolean {
    const isOneState = request.mixture === undefined
    return this.#keepsPrefixes && request.cache !== 'no-store' && isOneState
  }

  #prefixNamespace({ request, start }: LiveRequest): string {
    return namespaceOf(this.#secret, 'prefix', request.tenant ?? '', start?.id ?? '')
  }

  /** The secret changes once if the store is opened late. */
  get #secret(): Uint8Array {
    return this.#store?.secret ?? this.#ownSecret
  }

  #sessionNamespace(tenant: string): string {
    return sessionNamespace(this.#secret, tenant)
  }

  /** Takes a copy of a state that has consumed exactly `tokens`; it is a prefix when the copy is whole. */
  #keepPrefix(live: LiveRequest, tokens: Int32Array, read: (events: ReadEvents) => Read): void {
    const use = this.#uses.get(live)
    if (!use?.namespace || tokens.length < MIN_PREFIX_TOKENS) return
    const { namespace } = use
    if (this.#prefixes.has(namespace, tokens) || this.#isComing(namespace, tokens)) return
    // Nobody waits for a prefix: what cannot be taken now is not kept.
    if (this.#coming.size >= MAX_COMING || !this.#transfers.mayKeep()) return
    const coming: Coming = { use, tokens: tokens.slice(), read: null }
    this.#coming.add(coming)
    coming.read = read({
      whole: (state) => {
        this.#coming.delete(coming)
        use.prefixes.push(this.#prefixes.add(namespace, coming.tokens, state))
      },
      dropped: () => this.#coming.delete(coming),
    })
  }

  #isComing(namespace: string, tokens: Int32Array): boolean {
    const isIt = ({ use, tokens: others }: Coming) =>
      use.namespace === namespace && others.length === tokens.length && others.every((token, i) => token === tokens[i])
    return [...this.#coming].some(isIt)
  }
}

const NONE = new Int32Array(0)

function useOf(namespace: string | null, cachedTokens: number, prefixes: Prefix[] = []): Use {
  return { namespace, cachedTokens, prefixes, admittedAt: performance.now() }
}
