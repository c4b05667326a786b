/**
 * Long lives of an engine over real kernels: many users at once, with requests of every kind and with sessions that are
 * continued, rewound, forked, exported and deleted, with few slots and little memory, and an engine that is closed in the middle of
 * turns and opened again. Each answer must be that of a slot that has done nothing else, each kept state the one after exactly its
 * tokens, bit for bit, and in the end nothing is left over. A number makes a life: SKEIN_LIFE=123 SKEIN_LIVES=1 lives that
 * one, nearly: the store takes its own time.
 */
import { setImmediate } from 'node:timers/promises'
import { expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import { identityOf } from '../../src/engine/kept/identity.ts'
import type { EngineEvent, GenerateRequest, SessionInfo } from '../../src/engine/messages.ts'
import { LOOKUP, PREDICTION } from '../../src/engine/speculation/lookup.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { SkeinError } from '../../src/errors.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { StateData } from '../../src/model/runner.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { decodeSnapshot } from '../../src/state/snapshot-file.ts'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { draftOver, SCRIPTS, type Script, scripted } from './guesses.ts'
import * as kit from './kit.ts'
import { diceOf, grammars, MODELS, Oracle, outcomeOf, PATTERNS, tokensOf, transcriptAfter } from './lives-kit.ts'
import { sizesOf, USE, withoutSeal } from './session-kit.ts'

const SCRIPTED = Object.keys(SCRIPTS) as Script[] // of SCRIPTS
const NONE = new Int32Array(0)

/** How often each happened in all lives: lives in which nothing happens prove nothing. */
const HAPPENS = 'answers turns parts states preemptions acceptedTokens guessedTokens cachedTokens loads'.split(' ')
const seen = new Map<string, number>()
const saw = (what: string, count = 1) => seen.set(what, (seen.get(what) ?? 0) + count)

/** A session as it must be. One user at a time has it. */
interface Talk {
  readonly id: string
  readonly tenant: string
  readonly startState: string | undefined
  /** What each turn's state has consumed, its unfed tail included. */
  readonly turns: Map<number, Int32Array>
  head: number
}

class Life {
  readonly dice: ReturnType<typeof diceOf>
  readonly oracle: Oracle
  readonly world
  engine: Engine
  readonly talks: (Talk | null)[] = Array.from({ length: 6 }, () => null)
  /** Talks that somebody has. */
  readonly #taken = new Set<number>()
  /** By the request's id; told null where it was left. */
  readonly #asked = new Map<string, (event: EngineEvent | null) => void>()
  readonly #folder = newFolder()
  #numRequests = 0

  constructor(seed: number) {
    const dice = diceOf(seed)
    this.dice = dice
    const slots = 2 + dice.upTo(6)
    this.world = {
      model: dice.of(...MODELS),
      quant: dice.of('f32', 'f16', 'bf16', 'int8', 'q4', 'nf4') as 'f32', // or another
      loop: dice.of(...kit.LOOPS),
      slots,
      maxTokens: dice.of(24, 48, 200),
      threads: dice.of(1, 2),
      guesses: dice.of('none', 'lookup', 'draft', ...SCRIPTED),
      prefillChunk: dice.of(null, 5, 17),
      hasStore: dice.in(2),
      isDurable: dice.in(2),
      inSlots: dice.upTo(slots),
      inMemory: 1 + dice.upTo(5),
      numPrefixes: dice.of(0, 2, 6, 100),
      numAway: dice.of(0, 4, 100),
    }
    this.oracle = new Oracle(loadRunner({ ...this.world, device: 'cpu', slots: 8, maxTokens: 96, threads: 1 }))
    this.engine = this.open()
  }

  /** Without a store nothing is forgotten. */
  open(): Engine {
    const { world, oracle } = this
    const { guesses, hasStore, isDurable, inSlots, inMemory, numPrefixes, numAway, prefillChunk, loop } = world
    const runner = loadRunner({ ...world, device: 'cpu', speculate: guesses === 'none' ? 'off' : 'lookup' })
    const draft = () => draftOver(loadRunner({ ...world, quant: 'q4', device: 'cpu', slots: 6, maxTokens: 24 }))
    const truth = (prompt: Int32Array, request: GenerateRequest, choice: number) =>
      tokensOf(oracle.drawn({ ...request, prompt }, choice))
    const others = { none: () => [], lookup: () => [PREDICTION, LOOKUP], draft: () => [draft()] }
    const proposers = guesses in SCRIPTS ? [scripted(guesses as Script, truth)] : others[guesses as 'none']() // or another
    const states = {
      ...DEFAULT_STATE_OPTIONS,
      store: hasStore ? openDirectStore(this.#folder, identityOf(runner.info, '')) : null,
      isDurable,
      prefixBytes: numPrefixes * (runner.info.stateBytes + 400),
      sizes: sizesOf(inSlots, hasStore ? inMemory : 1e9),
    }
    const preemptBytes = numAway * runner.info.stateBytes
    const limits = { poisonFreedSlots: true, prefillChunk, preemptBytes, proposers }
    const engine = kit.engineOver(runner, limits, states, loop, kit.tokenBytes, grammars)
    engine.startStates.add('tuned', oracle.tuned)
    return engine
  }

  /** Some leave after a while. */
  async ask(request: GenerateRequest): Promise<readonly EngineEvent[] | null> {
    const { engine, dice } = this
    const events: EngineEvent[] = []
    let left = request.n
    const told = new Promise<boolean>((end) => {
      this.#asked.set(request.id, (event) => {
        if (event !== null) events.push(event)
        if (event?.type === 'finish') left--
        if (event !== null && event.type !== 'error' && left > 0) return
        this.#asked.delete(request.id)
        end(event !== null)
      })
    })
    engine.submit(request)
    if (dice.in(6)) {
      await pause(dice.upTo(40))
      if (this.#asked.has(request.id)) engine.cancel(request.id)
      this.#asked.get(request.id)?.(null)
    }
    if (!(await told)) return null
    const last = events.at(-1)!
    if (last.type === 'error') throw new SkeinError(last.error.code, last.error.message)
    return events
  }

  /** Null where there is no such session. */
  infoOf({ tenant, id }: Talk): Promise<SessionInfo | null> {
    return this.engine.call('sessions.get', { tenant, id }).catch((error) => {
      if (error.code !== 'not_found') throw error
      return null
    })
  }

  close(): Promise<void> {
    const { preemptions, acceptedTokens, guessedTokens, states } = this.engine.stats
    const { cachedTokens, loads } = states!
    const counts = { preemptions, acceptedTokens, guessedTokens, cachedTokens, loads }
    for (const [what, count] of Object.entries(counts)) saw(what, count)
    return this.engine.close()
  }

  async act(): Promise<void> {
    const { dice, talks } = this
    const which = dice.upTo(talks.length - 1)
    const kind = dice.upTo(19)
    if (kind < 7) return this.prompt()
    if (this.#taken.has(which)) return
    this.#taken.add(which)
    const startState = dice.of(undefined, undefined, 'tuned')
    const fresh = { id: `s${which}`, tenant: dice.of('', 'a'), startState, turns: new Map([[0, NONE]]), head: 0 }
    const talk = talks[which] ?? fresh
    talks[which] = talk
    try {
      await this.use(talk, which, kind)
    } finally {
      this.#taken.delete(which)
    }
  }

  async use(talk: Talk, which: number, kind: number): Promise<void> {
    const { dice, talks } = this
    const { id, tenant, turns } = talk
    const info = await this.infoOf(talk)
    expect(info?.head ?? 0).toBe(talk.head)
    if (info === null || kind < 14) return this.turn(talk)
    if (kind === 14) return this.look(talk)
    const turn = dice.of(...info.turns).turn
    if (kind === 15) {
      const number = talk.head === 0 ? turn : dice.of<number | 'undo'>(turn, 'undo')
      const { head } = await this.engine.call('sessions.rewind', { tenant, id, turn: number, ifVersion: info.version })
      expect(head).toBe(number === 'undo' ? info.turns.find((one) => one.turn === talk.head)!.parent : turn)
      talk.head = head
    } else if (kind === 16) {
      await this.engine.call('sessions.delete', { tenant, id })
      talks[which] = null
    } else {
      const to = talks.findIndex((one, i) => one === null && !this.#taken.has(i))
      if (to === -1) return
      this.#taken.add(to)
      const forked = await this.engine.call('sessions.fork', { tenant, id, newId: `s${to}`, turn })
      const known = forked.turns.map((one) => [one.turn, turns.get(one.turn)!] as const)
      talks[to] = { ...talk, id: `s${to}`, head: forked.head, turns: new Map([[0, NONE], ...known]) }
      this.#taken.delete(to)
    }
  }

  /** Some request, of any kind. */
  request(prompt: Int32Array, history: Int32Array, more: Partial<GenerateRequest>): GenerateRequest {
    const { dice } = this
    const isHeld = dice.in(8)
    const isPenalised = dice.in(3)
    const sampling = {
      ...kit.SAMPLING,
      temperature: dice.of(0, 0, 0.3, 1, 1),
      topP: dice.of(1, 1, 0.7),
      topK: dice.of(0, 0, 5),
      noise: dice.of(0, 0, 0, 1),
      presencePenalty: isPenalised ? 0.5 : 0,
      frequencyPenalty: isPenalised ? dice.of(0, 0.4) : 0,
      penaltyDecay: dice.of(1, 0.9),
      repetitionPenalty: isPenalised ? dice.of(1, 1.3) : 1,
      seed: BigInt(dice.upTo(2 ** 40)) << 20n,
      logitBias: dice.in(5) ? [[20, 2] as const, [30, -3] as const] : [],
      bannedTokens: !isHeld && dice.in(5) ? [17, 18, 19 + dice.upTo(20)] : [],
    }
    const tokens = dice.in(4) ? [dice.upTo(kit.V + 2), dice.upTo(kit.V)] : []
    const stop = { strings: [], tokens, ignoreEos: dice.in(2) }
    const maxTokens = dice.of(dice.upTo(4), dice.upTo(40), dice.upTo(40))
    const [logprobs, priority] = [dice.of(null, null, 0, 2), dice.of(0, 0, 1, 2)]
    const id = `r${++this.#numRequests}`
    const request = kit.requestOf({ id, prompt, sampling, stop, maxTokens, logprobs, priority, ...more })
    if (isHeld) return { ...request, constraint: dice.of(...PATTERNS) }
    // Its stops and its prediction have to do with its answer, which is known.
    const drawn = tokensOf(this.oracle.drawn({ ...request, prompt: joinTokens(history, [...prompt]) }))
    const letters = [...kit.textOf(drawn, false)]
    const at = dice.upTo(letters.length)
    const strings = [
      `${letters.slice(at, at + 1 + dice.upTo(5)).join('')}${dice.of('', 'x') || (letters[at] ? '' : 'x')}`,
    ]
    const prediction = Int32Array.from(drawn, (token) => (dice.in(6) ? 15 : token))
    return { ...request, ...(dice.in(2) && { prediction }), ...(dice.in(2) && { stop: { ...stop, strings } }) }
  }

  async prompt(): Promise<void> {
    const { dice } = this
    const prompt = kit.promptOf(dice.of(1 + dice.upTo(8), 30 + dice.upTo(60), 1 + dice.upTo(150)), dice.upTo(2))
    const request = this.request(prompt, NONE, {
      n: dice.of(1, 1, 1 + dice.upTo(Math.min(2, this.world.slots - 1))),
      tenant: dice.of('', 'a', 'b'),
      promptLogprobs: dice.of(null, null, null, null, 0, 2),
      startState: dice.of(undefined, undefined, 'tuned'),
      cache: dice.of('use', 'use', 'no-store'),
      ...(dice.in(3) && { boundaries: Int32Array.of(20, 40 + dice.upTo(60)) }),
    })
    const isPlain = request.n === 1 && request.promptLogprobs === null && request.startState === undefined
    const mixture = ['tuned', null].map((startState, i) => ({ startState, weight: 0.7 - 0.2 * i }))
    const asked = isPlain && dice.in(6) ? { ...request, mixture } : request
    const events = await this.ask(asked)
    if (events !== null) await this.check(asked, prompt, events)
  }

  /** A turn after the head or after another one. */
  async turn(talk: Talk): Promise<void> {
    const { turns } = talk
    const from = this.dice.in(5) ? this.dice.of(...turns.keys()) : talk.head
    const request = this.turnOf(talk, from)
    const whole = joinTokens(turns.get(from)!, [...request.prompt])
    const events = await this.ask(request)
    if (events === null) return this.left(talk, { ...request, prompt: whole })
    const finish = events.find((event) => event.type === 'finish')
    expect(finish?.session?.continued).toBe(from)
    await this.check(request, whole, events)
    talk.head = finish!.session!.turn
    turns.set(talk.head, transcriptAfter(whole, outcomeOf(events, request).choices[0]!.answer!))
    saw('turns')
  }

  turnOf({ id, tenant, startState, turns, head }: Talk, from: number): GenerateRequest {
    const { dice } = this
    const onCancel = dice.of<'keep' | 'drop'>('keep', 'drop')
    const session = { ...USE, id, onCancel, ...(from !== head && { from }) }
    const prompt = kit.promptOf(1 + dice.upTo(12), dice.upTo(5))
    return this.request(prompt, turns.get(from)!, { tenant, session, startState })
  }

  /** A turn that was left is one with the tokens that were drawn by then, or none. */
  async left(talk: Talk, request: GenerateRequest): Promise<void> {
    const { tenant, id, turns } = talk
    let info = await this.infoOf(talk)
    // What it has become may still be on its way to the store.
    for (; info?.isBusy; info = await this.infoOf(talk)) await setImmediate()
    const turn = info?.head ?? 0
    if (turn === talk.head) return
    const tokens = await this.engine.call('sessions.tokens', { tenant, id, turn, start: 0, end: 1e9 })
    if (request.constraint === undefined) {
      const drawn = tokensOf(this.oracle.drawn(request))
      const full = transcriptAfter(request.prompt, kit.answerFrom(drawn, request))
      const part = joinTokens(request.prompt, drawn).subarray(0, tokens.length)
      expect([full.join(), part.join()]).toContain(tokens.join())
    }
    talk.head = turn
    turns.set(turn, tokens)
    saw('parts')
  }

  async check(request: GenerateRequest, prompt: Int32Array, events: readonly EngineEvent[]): Promise<void> {
    const { session: _, priority: _p, cache: _c, prediction: _d, ...rest } = request
    expect(outcomeOf(events, request)).toEqual(await this.oracle.outcome({ ...rest, prompt }))
    saw('answers', request.n)
  }

  /** Each turn has the tokens that are known of it, and the state after those it has consumed. */
  async look(talk: Talk): Promise<void> {
    const { tenant, id } = talk
    const info = await this.infoOf(talk)
    expect([info?.head ?? 0, info?.isBusy ?? false]).toEqual([talk.head, false])
    for (const { turn } of info?.turns ?? []) {
      const bytes = await this.engine.call('sessions.export', { tenant, id, turn })
      const { snapshot } = decodeSnapshot(withoutSeal(bytes), identityOf(this.oracle.runner.info, ''))
      expect(joinTokens(snapshot.tokens, [...snapshot.tail]).join()).toBe(talk.turns.get(turn)!.join())
      const bits = (state: StateData) => state.map((array) => Buffer.from(array.slice().buffer).toString('base64'))
      expect(bits(snapshot.state)).toEqual(bits(this.oracle.stateAfter(snapshot.tokens, talk.startState)))
      saw('states')
    }
  }

  async user(numActs: number): Promise<void> {
    for (let i = 0; i < numActs; i++) {
      await pause(this.dice.upTo(12))
      await this.act().catch((error) => {
        // Memory is full of what is not written yet.
        if (error.code !== 'state_unavailable') throw error
      })
    }
  }

  /** Everything moves until that is settled. */
  async during<T>(work: Promise<T>): Promise<T> {
    let isSettled = false
    const settle = () => {
      isSettled = true
    }
    work.then(settle, settle)
    while (!isSettled) {
      const { engine } = this
      if (engine.failure !== null) throw engine.failure
      if (engine.hasWork) for (const event of engine.step()) this.#asked.get(event.id)?.(event)
      await setImmediate()
    }
    return work
  }

  /** Closes the engine in the middle of turns and opens it again, which nobody can tell but by their end. */
  async reopen(): Promise<void> {
    const begun = this.talks.flatMap((talk) => (talk === null ? [] : [{ talk, request: this.turnOf(talk, talk.head) }]))
    for (const { request } of begun) this.engine.submit(request)
    for (let steps = this.dice.upTo(12); steps > 0; steps--) this.engine.step()
    await this.close()
    this.engine = this.open()
    for (const { talk, request } of begun) {
      const prompt = joinTokens(talk.turns.get(talk.head)!, [...request.prompt])
      await this.during(this.left(talk, { ...request, prompt }))
    }
  }

  async live(numUsers: number, numActs: number): Promise<void> {
    for (let part = 0; part < 2; part++) {
      await this.during(Promise.all(Array.from({ length: numUsers }, () => this.user(numActs))))
      if (this.world.hasStore) await this.reopen()
    }
    for (const talk of this.talks) if (talk !== null) await this.during(this.look(talk))
    const { engine } = this
    const still = async () => {
      while (!engine.isIdle || engine.hasWork || engine.stats.states!.unsaved > 0) await setImmediate()
    }
    await this.during(still())
    const { inMemory, inSlots, numPrefixes, hasStore } = this.world
    const { states, ...stats } = engine.stats
    expect(stats).toMatchObject({ waiting: 0, running: 0, preempted: 0, freeSlots: engine.info.numSlots })
    const most = [numPrefixes, inSlots, hasStore ? inMemory : 1e9]
    const kept = [states!.prefixes, states!.inSlots, states!.inMemory]
    expect(kept.map((count, i) => count <= most[i]!)).toEqual([true, true, true])
    await this.close()
    this.oracle.runner.dispose()
  }
}

async function pause(rounds: number): Promise<void> {
  for (let i = 0; i < rounds; i++) await setImmediate()
}

const FIRST = Number(process.env.SKEIN_LIFE ?? 1)
const NUM_LIVES = Number(process.env.SKEIN_LIVES ?? (IS_SLOW ? 100 : 3))

test(
  'long lives of many users',
  async () => {
    for (let seed = FIRST; seed < FIRST + NUM_LIVES; seed++) {
      const life = new Life(seed)
      await life.live(7, 7).catch((error) => {
        throw new Error(`life ${seed}: ${JSON.stringify(life.world)}`, { cause: error })
      })
    }
    const expected = NUM_LIVES < 10 ? ['answers', 'turns', 'states'] : HAPPENS
    expect(expected.filter((what) => !seen.get(what))).toEqual([])
  },
  60_000 * NUM_LIVES,
)
