/**
 * Kept states as the engine uses them: which one a request begins with, where copies are taken while a prompt is read,
 * and what is kept when an answer ends. It works between the parts of a step and never waits; what is kept, where, and
 * for how long is src/state/.
 */
import { randomBytes } from 'node:crypto'
import type { SkeinError } from '../errors.ts'
import type { ModelInfo, Runner } from '../model/runner.ts'
import { namespaceOf, SECRET_BYTES } from '../state/namespace.ts'
import { MIN_PREFIX_TOKENS, type Prefix, PrefixCache } from '../state/prefix-cache.ts'
import { joinTokens, type ModelIdentity, type StateArrays } from '../state/snapshot.ts'
import type { TokenBytes } from './answer-text.ts'
import { type CopyBudget, type CopyKind, SpareTime } from './copy-budget.ts'
import type { EngineEvent, GenerateRequest, SessionPosition, StateStats } from './messages.ts'
import type { LiveRequest, Sequence, Start } from './sequence.ts'
import { type SessionHandlers, sessionCalls } from './session-calls.ts'
import { type SessionOptions, SessionTurns } from './session-turns.ts'
import type { Opening } from './session-writers.ts'
import { PIECE_BYTES, writing } from './slot-fills.ts'
import type { SlotPool } from './slots.ts'
import { snapshotPoints } from './snapshot-points.ts'
import { type Spend, StateCopies, type TakenState } from './state-copies.ts'

export interface StateOptions extends SessionOptions {
  /** Hash of the vocabulary. */
  readonly vocabulary: string
  /** Memory for prompt prefixes; 0 keeps none. */
  readonly prefixBytes: number
  /** Milliseconds of a step that filling slots and copies of states may take. */
  readonly copyBudgetMs: number
  /** Of a state that are read or written at a time; at least a layer is. */
  readonly pieceBytes: number
}

/** In memory only, for a vocabulary without a name. */
export const DEFAULT_STATE_OPTIONS: StateOptions = {
  vocabulary: '',
  store: null,
  isDurable: false,
  now: Date.now,
  prefixBytes: 2 ** 30,
  copyBudgetMs: 3.5,
  pieceBytes: PIECE_BYTES,
  sizes: { slots: 16, memory: { count: 32, bytes: Number.POSITIVE_INFINITY } },
  limits: { maxSessions: 10_000, maxBytes: 64 * 2 ** 30, maxTurns: 16, ttlMs: null },
}

/** How the end of an answer is reported: with its turn, if it became one, or with why it could not be kept. */
export type Report = (session: SessionPosition | null, error: SkeinError | null) => void

/** What a live request has to do with kept states. */
interface Use {
  /** Of prefixes; null where none are kept. */
  readonly namespace: string | null
  /** Prompt tokens not computed. */
  readonly cachedTokens: number
  /** Prefixes it was begun with and has added: not to be trusted if it fails. */
  readonly prefixes: Prefix[]
}

/** A prefix whose state is still in a spare slot. */
interface Coming {
  readonly use: Use
  readonly tokens: Int32Array
  taken: TakenState | null
}

/** Takes a copy of a state; see StateCopies. */
type Take = (onWhole: (state: StateArrays) => void, spend: Spend) => TakenState

/** Spare slots that prefixes may have at a time. */
const MAX_COMING = 2

export class States {
  /** What may be asked about sessions. */
  readonly calls: SessionHandlers
  readonly #runner: Runner
  readonly #options: StateOptions
  readonly #copies: StateCopies
  /** Null where copies are not bounded. */
  readonly #spareTime: SpareTime | null
  readonly #prefixes: PrefixCache
  readonly #coming = new Set<Coming>()
  readonly #turns: SessionTurns
  readonly #secret: Uint8Array
  readonly #uses = new WeakMap<LiveRequest, Use>()
  readonly #counters = { cachedTokens: 0, prefixHits: 0, prefixMisses: 0 }

  /** `wake` is called when something came between steps that makes work for the next one. */
  constructor(
    runner: Runner,
    slots: SlotPool,
    budget: CopyBudget,
    tokenBytes: TokenBytes,
    options: StateOptions,
    wake: () => void,
  ) {
    const { store, isDurable, copyBudgetMs, pieceBytes, prefixBytes, vocabulary } = options
    this.#runner = runner
    this.#options = options
    this.#copies = new StateCopies(runner, slots, budget, pieceBytes)
    this.#spareTime = copyBudgetMs === Number.POSITIVE_INFINITY ? null : new SpareTime()
    const { memory } = this.#copies
    this.#prefixes = new PrefixCache(prefixBytes, (state) => memory.drop(state))
    this.#secret = store?.secret ?? randomBytes(SECRET_BYTES)
    this.#turns = new SessionTurns(runner, slots, tokenBytes, options, this.#copies, wake)
    this.calls = sessionCalls({
      turns: this.#turns,
      identity: identityOf(runner.info, vocabulary),
      vocabSize: runner.info.vocabSize,
      isDurable,
      namespaceOf: (tenant) => this.#sessionNamespace(tenant),
    })
  }

  get stats(): StateStats {
    const { count, bytes } = this.#prefixes
    const { sessions, chores } = this.#turns
    const { tiers, saver } = chores
    return {
      sessions: sessions.count,
      inSlots: tiers.numInSlots,
      inMemory: tiers.numInMemoryOnly,
      onDisk: sessions.numStates - tiers.numInSlots - tiers.numInMemoryOnly,
      unsaved: saver?.numUnsaved ?? 0,
      prefixes: count,
      prefixBytes: bytes,
      ...this.#counters,
      ...(saver?.counters ?? { saves: 0, failedSaves: 0 }),
      loads: tiers.numLoads,
    }
  }

  /** Slots that hold kept states or copies: they can be had back. */
  get numKeptSlots(): number {
    return this.#turns.chores.numKeptSlots
  }

  /** Frees one of those; false when this step has no time for it. */
  reclaimSlot(): boolean {
    return this.#turns.chores.reclaimSlot()
  }

  get hasChores(): boolean {
    return this.#turns.chores.hasChores
  }

  /** A request with a session joins the waiting line when it is the writer and the state is at hand. May throw. */
  open(live: LiveRequest, opening: Opening): void {
    this.#turns.writers.open(live, this.#sessionNamespace(live.request.tenant ?? ''), opening)
  }

  /** Takes the copies that requests wait for. isAlone: nobody else runs. isFilling: states are on their way into slots. */
  beginStep({ isAlone, isFilling }: { isAlone: boolean; isFilling: boolean }): void {
    if (!isFilling) this.#copies.memory.settle()
    this.#turns.takeOwed(isAlone)
  }

  /** Background work of a step, after all that requests need. */
  endStep(): void {
    this.#turns.chores.tidy()
  }

  /** Without saving anything. */
  dispose(): void {
    this.#turns.dispose()
  }

  close(isSound: boolean): Promise<void> {
    this.dispose()
    return this.#turns.chores.close(isSound)
  }

  /** At admission: the state of the session's turn, or the longest kept prefix of the prompt. */
  startOf(live: LiveRequest): Start | null {
    const start = this.#turns.startOf(live)
    if (start === null) return this.#prefixOf(live)
    this.#counters.cachedTokens += start.numTokens
    this.#uses.set(live, { namespace: null, cachedTokens: start.numTokens, prefixes: [] })
    return start
  }

  /** Also says where copies will be taken of what is not cached. */
  #prefixOf(live: LiveRequest): Start | null {
    const { prompt, request } = live
    if (!this.#usesPrefixes(request)) return null
    const namespace = namespaceOf(
      this.#secret,
      'prefix',
      request.tenant ?? '',
      live.start?.id ?? '',
    )
    // Scoring needs the logits after every token. Otherwise one token is left to be fed, to draw from.
    const isScored = request.promptLogprobs !== null
    const found = isScored ? null : this.#prefixes.find(namespace, prompt, prompt.length - 1)
    const cachedTokens = found?.tokens.length ?? 0
    live.points = snapshotPoints(prompt.length, {
      start: cachedTokens,
      shared: this.#prefixes.sharedLength(namespace, prompt),
      boundaries: request.boundaries ?? NONE,
    })
    this.#uses.set(live, { namespace, cachedTokens, prefixes: found ? [found] : [] })
    this.#counters.cachedTokens += cachedTokens
    if (found !== null) this.#counters.prefixHits++
    else if (prompt.length > MIN_PREFIX_TOKENS) this.#counters.prefixMisses++
    if (found === null) return null
    const { state } = found
    const { layersAtOnce } = this.#copies
    const fill = (slot: number) => writing(this.#runner, slot, state, layersAtOnce)
    return { numTokens: cachedTokens, fill }
  }

  /** What the prompt event says of the start. */
  usageOf(
    live: LiveRequest,
  ): Pick<EngineEvent & { type: 'prompt' }, 'cachedTokens' | 'contextTokens' | 'session'> {
    const session = this.#turns.positionOf(live)
    return {
      cachedTokens: this.#uses.get(live)?.cachedTokens ?? 0,
      contextTokens: live.prompt.length,
      ...(session === null ? {} : { session }),
    }
  }

  /** After prompt tokens were fed: takes a copy if this is a point for one. */
  atPoint(live: LiveRequest): void {
    if (live.numFed !== live.points[0]) return
    live.points = live.points.slice(1)
    const tokens = live.prompt.subarray(0, live.numFed)
    if (!this.#copies.canTakeNow) return
    this.#keepPrefix(live, tokens, (onWhole, spend) =>
      this.#copies.take(live.sequences[0]!.slot!, onWhole, spend),
    )
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
    if (slot !== null && !isSpoilt && this.#copies.canTakeOverNow) {
      const tokens = joinTokens(owner.prompt, drawn.slice(0, numFed))
      this.#keepPrefix(owner, tokens, (onWhole, spend) => {
        sequence.slot = null
        return this.#copies.takeOver(slot, onWhole, spend)
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
    for (const prefix of use?.prefixes ?? []) this.#prefixes.delete(prefix)
    for (const coming of this.#coming) {
      if (coming.use !== use) continue
      this.#coming.delete(coming)
      if (coming.taken !== null) this.#copies.letGo(coming.taken)
    }
  }

  #usesPrefixes(request: GenerateRequest): boolean {
    const isOneState = request.mixture === undefined
    return this.#options.prefixBytes > 0 && request.cache !== 'no-store' && isOneState
  }

  #sessionNamespace(tenant: string): string {
    return namespaceOf(this.#secret, 'session', tenant)
  }

  /** Takes a copy of a state that has consumed exactly `tokens`; it is a prefix when the copy is whole. */
  #keepPrefix(live: LiveRequest, tokens: Int32Array, take: Take): void {
    const use = this.#uses.get(live)
    if (!use?.namespace || tokens.length < MIN_PREFIX_TOKENS) return
    const { namespace } = use
    if (this.#prefixes.has(namespace, tokens) || this.#isComing(namespace, tokens)) return
    if (this.#spareTime?.allows === false) return
    if (this.#coming.size >= MAX_COMING) return
    const coming: Coming = { use, tokens: tokens.slice(), taken: null }
    this.#coming.add(coming)
    const onWhole = (state: StateArrays) => {
      this.#coming.delete(coming)
      use.prefixes.push(this.#prefixes.add(namespace, coming.tokens, state))
    }
    coming.taken = take(onWhole, (kind, copy) => this.#spend(kind, copy))
  }

  #isComing(namespace: string, tokens: Int32Array): boolean {
    const isIt = ({ use, tokens: others }: Coming) =>
      use.namespace === namespace &&
      others.length === tokens.length &&
      others.every((token, i) => token === tokens[i])
    return [...this.#coming].some(isIt)
  }

  #spend(kind: CopyKind, copy: () => void): void {
    const counted = () => this.#copies.budget.spend(kind, copy)
    if (this.#spareTime === null) counted()
    else this.#spareTime.spend(counted)
  }
}

/** The same checkpoint at another precision computes other states. */
export function identityOf(info: ModelInfo, vocabulary: string): ModelIdentity {
  const { architecture, fingerprint, weightType, stateShape } = info
  return { architecture, ...stateShape, vocabulary, weights: `${fingerprint} as ${weightType}` }
}

const NONE = new Int32Array(0)
