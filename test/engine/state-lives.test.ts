/**
 * Random lives of an engine that copies states in pieces: turns, prompts with common prefixes, forks, rewinds, exports, imports,
 * releases and cancels at any moment, with few slots, little memory, and right and wrong guesses. Whatever is dropped, reused or
 * half copied meanwhile, every answer is that of a single request, every exported state is the one after exactly its
 * tokens, and at the end every slot is free.
 */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest, SessionInfo } from '../../src/engine/messages.ts'
import { transcriptOf } from '../../src/state/snapshot.ts'
import { decodeSnapshot } from '../../src/state/snapshot-file.ts'
import { type DirectStore, newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { stateAfter } from '../helpers/fake-runner.ts'
import { trials } from '../helpers/slow.ts'
import { SOURCES, type Source, sourcesOf } from './guesses.ts'
import { Collected, LOOPS, type Loop, promptOf, requestOf, soloAnswer } from './kit.ts'
import { IDENTITY, settle, setUp, sizesOf, turnOf, withoutSeal } from './session-kit.ts'

const LAYERS = 4
/** The same lives each time; SKEIN_LIVES=5000 runs that many new ones. */
const RUNS =
  process.env.SKEIN_LIVES === undefined
    ? { numRuns: trials(40, 80), seed: 7 }
    : { numRuns: Number(process.env.SKEIN_LIVES) }

type Action =
  | { readonly type: 'prompt'; readonly parts: Partial<GenerateRequest> }
  | { readonly type: 'turn'; readonly id: string; readonly parts: Partial<GenerateRequest> }
  | { readonly type: 'export'; readonly id: string }
  | { readonly type: 'delete' | 'release' | 'rewind'; readonly id: string; readonly turn: number }
  | { readonly type: 'fork' | 'import'; readonly id: string; readonly newId: string; readonly turn: number }
  | { readonly type: 'cancel'; readonly which: number }
  | { readonly type: 'step'; readonly times: number }
  | { readonly type: 'wait' }

const parts: fc.Arbitrary<Partial<GenerateRequest>> = fc
  .record({
    length: fc.oneof(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 30, max: 90 })),
    seed: fc.nat(2),
    maxTokens: fc.integer({ min: 1, max: 60 }),
    priority: fc.constantFrom(0, 0, 1, 2),
    strings: fc.constantFrom<string[]>([], [], ['ab', 'ca'], ['no such text'], ['aab', 'b']),
  })
  .map(({ length, seed, strings, ...rest }) => ({
    ...rest,
    prompt: promptOf(length, seed),
    stop: { strings, tokens: [], ignoreEos: true },
  }))

const id = fc.constantFrom('a', 'b', 'c')
/** 0: the head, or undo. */
const turn = fc.nat(3)
const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ type: fc.constant('prompt' as const), parts }) },
  { weight: 7, arbitrary: fc.record({ type: fc.constant('turn' as const), id, parts }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('export' as const), id }) },
  {
    weight: 3,
    arbitrary: fc.record({ type: fc.constantFrom('delete' as const, 'release' as const, 'rewind' as const), id, turn }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ type: fc.constantFrom('fork' as const, 'import' as const), id, newId: id, turn }),
  },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('cancel' as const), which: fc.nat(5) }) },
  {
    weight: 8,
    arbitrary: fc.record({
      type: fc.constant('step' as const),
      times: fc.integer({ min: 1, max: 12 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('wait' as const) }) },
)

interface World {
  readonly numSlots: number
  readonly inSlots: number
  readonly inMemory: number
  readonly numPrefixes: number
  readonly hasStore: boolean
  readonly isKept: boolean
  readonly numSpares: number
  readonly numKept: number
  readonly script: Source
  /** Null: as many tokens of a prompt as a step has time for. */
  readonly prefillChunk: number | null
}

/** Reads its input over several turns of the event loop, like the real one. */
function slowStore(): DirectStore {
  const store = openDirectStore(newFolder(), { ...IDENTITY, layers: LAYERS })
  const commit = store.commit.bind(store)
  store.commit = async (change) => {
    for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setTimeout(resolve, 1))
    return commit(change)
  }
  return store
}

/** What a session has not, cannot be asked while it is used, or lies in another worker's hands. */
const REFUSALS = ['not_found', 'conflict', 'state_unavailable']

/** Of each turn what its state had consumed, whichever session of that name it was of. */
class Transcripts {
  readonly #known = new Map<string, Int32Array[]>()
  /** Turns of which something may not be known. */
  readonly #unsure = new Map<string, number>()

  /** Null where it may be another one. */
  of(session: string, turn: number): readonly Int32Array[] | null {
    if (turn === 0) return [new Int32Array(0)]
    const isSure = !this.#unsure.get(`${session} ${turn}`) && !this.#unsure.get(`${session} *`)
    return isSure ? (this.#known.get(`${session} ${turn}`) ?? null) : null
  }

  /** `told` resolves with the tokens of each of the turns; a turn of which it does not stays unsure. `turn` "*": any. */
  async learn(session: string, turn: number | '*', told: Promise<ReadonlyMap<number, Int32Array>>): Promise<void> {
    const key = `${session} ${turn}`
    this.#unsure.set(key, (this.#unsure.get(key) ?? 0) + 1)
    for (const [number, tokens] of await told) {
      const name = `${session} ${number}`
      this.#known.set(name, [...(this.#known.get(name) ?? []), tokens])
    }
    this.#unsure.set(key, this.#unsure.get(key)! - 1)
  }
}

/** Makes a call that may change a session; refusals reject. */
async function change(engine: Engine, act: Extract<Action, { turn: number }>, transcripts: Transcripts): Promise<void> {
  const { type, id: session, turn: number } = act
  const ref = { tenant: '', id: session }
  const one = number === 0 ? undefined : number
  const tokensOf = async (id: string, turn: number): Promise<[number, Int32Array]> => {
    return [turn, await engine.call('sessions.tokens', { tenant: '', id, turn, start: 0, end: 1e9 })]
  }
  if (type === 'rewind') await engine.call('sessions.rewind', { ...ref, turn: one ?? 'undo' })
  else if (type === 'fork') {
    const { newId } = act
    const forked = engine.call('sessions.fork', { ...ref, newId, turn: one })
    const learn = async ({ turns }: SessionInfo) =>
      new Map(await Promise.all(turns.map(({ turn }) => tokensOf(newId, turn))))
    await transcripts.learn(newId, '*', orNone(forked.then(learn)))
    await forked
  } else if (type === 'import') {
    const { newId } = act
    const bytes = await engine.call('sessions.export', { ...ref, turn: one })
    const { snapshot } = decodeSnapshot(withoutSeal(bytes), { ...IDENTITY, layers: LAYERS })
    const imported = engine.call('sessions.import', { tenant: '', id: newId, bytes })
    await transcripts.learn(newId, 1, orNone(imported.then(() => new Map([[1, transcriptOf(snapshot)]]))))
    await imported
  } else await engine.call(`sessions.${type}`, ref)
}

/** Of a call that is refused with a code at once nothing is to be learnt; else what is missing stays unsure. */
async function orNone(told: Promise<Map<number, Int32Array>>): Promise<Map<number, Int32Array>> {
  return told.catch((error) => {
    if (error.code === 'conflict') return new Map()
    throw error
  })
}

/** How often each of them happened. */
interface Seen {
  answers: number
  exports: number
  cancelled: number
  preemptions: number
  turns: number
  changes: number
  accepted: number
  rejected: number
}

async function live(actions: readonly Action[], world: World, loop: Loop, seen: Seen): Promise<void> {
  const { numSlots, inSlots, inMemory, numPrefixes, hasStore, isKept, numSpares, numKept, script, prefillChunk } = world
  const store = hasStore ? slowStore() : null
  const { engine } = setUp({
    fake: {
      layers: LAYERS,
      numSlots,
      numSpares,
      numKept,
      maxSamples: numSlots + 8 * numSpares,
      maxLogits: numSlots + 8 * numSpares,
    },
    limits: { proposers: sourcesOf(script), prefillChunk },
    states: {
      store,
      sizes: sizesOf(inSlots, inMemory),
      prefixBytes: numPrefixes * 3000,
    },
    loop,
  })
  const collected = new Collected()
  const prompts = new Map<string, GenerateRequest>()
  const cancelled = new Set<string>()
  const turns = new Map<string, GenerateRequest>()
  const transcripts = new Transcripts()
  const exports: Promise<void>[] = []
  const step = () => {
    const events = engine.step()
    collected.add(events)
    for (const event of events) {
      const request = turns.get(event.id)
      if (event.type !== 'finish' || event.session === undefined || request === undefined) continue
      const { id: session, turn: number, continued = 0 } = event.session
      const asked = { tenant: '', id: session, turn: number, start: 0, end: 1e9 }
      const befores = transcripts.of(session, continued)
      const told = engine.call('sessions.tokens', asked).then((tokens) => new Map([[number, tokens]]))
      exports.push(transcripts.learn(session, number, told).catch((error) => expect(REFUSALS).toContain(error.code)))
      if (befores === null) continue
      const answers = befores.map((before) => {
        return soloAnswer({ ...request, prompt: Int32Array.of(...before, ...request.prompt) })
      })
      expect(answers).toContainEqual(collected.answer(event.id))
      seen.turns++
    }
  }
  const check = (bytes: Uint8Array) => {
    const { snapshot } = decodeSnapshot(withoutSeal(bytes), { ...IDENTITY, layers: LAYERS })
    expect(snapshot.state).toEqual(stateAfter(snapshot.tokens, LAYERS))
    seen.exports++
  }
  const look = (session: string) =>
    engine.call('sessions.export', { tenant: '', id: session, turn: undefined }).then(check, (error) => {
      if (error.code !== 'not_found') throw error
    })
  for (const [i, act] of actions.entries()) {
    if (act.type === 'prompt' || act.type === 'turn') {
      const use = {
        id: act.type === 'turn' ? act.id : '',
        onCancel: isKept ? 'keep' : 'drop',
      } as const
      const common = { ...act.parts, id: `r${i}` }
      const request = act.type === 'turn' ? turnOf(common, use) : requestOf(common)
      if (act.type === 'prompt') prompts.set(request.id, request)
      else turns.set(request.id, request)
      engine.submit(request)
    } else if (act.type === 'export') {
      exports.push(look(act.id))
    } else if (act.type !== 'cancel' && act.type !== 'wait' && act.type !== 'step') {
      exports.push(
        change(engine, act, transcripts).then(
          () => {
            seen.changes++
          },
          (error) => expect(REFUSALS).toContain(error.code),
        ),
      )
    } else if (act.type === 'cancel') {
      const which = engine.liveIds[act.which]
      if (which === undefined) continue
      engine.cancel(which)
      cancelled.add(which)
      seen.cancelled++
    } else if (act.type === 'wait') {
      await new Promise((resolve) => setTimeout(resolve, 1))
    } else {
      for (let k = 0; k < act.times; k++) step()
    }
    expect(engine.failure).toBeNull()
  }
  const deadline = performance.now() + 120_000
  let numOpen = exports.length
  for (const one of exports) void one.catch(() => {}).finally(() => numOpen--)
  while (numOpen > 0 && performance.now() < deadline) {
    while (engine.hasWork) step()
    await new Promise((resolve) => setTimeout(resolve, 0))
  }
  await Promise.all(exports)
  await settle(engine, collected)
  for (const [id, request] of prompts) {
    if (cancelled.has(id)) continue
    expect(collected.answer(id)).toEqual(soloAnswer(request))
    seen.answers++
  }
  for (const session of ['a', 'b', 'c']) {
    let isOver = false
    const last = look(session).finally(() => {
      isOver = true
    })
    while (!isOver) {
      while (engine.hasWork) engine.step()
      await new Promise((resolve) => setTimeout(resolve, 0))
    }
    await last
  }
  await settle(engine)
  expect(engine.failure).toBeNull()
  seen.preemptions += engine.stats.preemptions
  seen.accepted += engine.stats.acceptedTokens
  seen.rejected += engine.stats.guessedTokens - engine.stats.acceptedTokens
  expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: numSlots })
  await engine.close()
}

test.each(LOOPS)(
  'random lives of kept states, %s',
  async (loop) => {
    const seen: Seen = {
      answers: 0,
      exports: 0,
      cancelled: 0,
      preemptions: 0,
      turns: 0,
      changes: 0,
      accepted: 0,
      rejected: 0,
    }
    const world = fc.record({
      numSlots: fc.integer({ min: 1, max: 6 }),
      inSlots: fc.integer({ min: 0, max: 3 }),
      inMemory: fc.integer({ min: 1, max: 4 }),
      numPrefixes: fc.nat(2),
      hasStore: fc.boolean(),
      isKept: fc.boolean(),
      numSpares: fc.nat(2),
      numKept: fc.constantFrom(0, 12),
      script: fc.constantFrom(...SOURCES),
      prefillChunk: fc.constantFrom(null, 3, 17),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(action, { minLength: 10, maxLength: 60 }), world, (actions, where) =>
        live(actions, where, loop, seen),
      ),
      RUNS,
    )
    // Whether a request is still running when it is to be cancelled, or to give up its slot, depends on timers.
    expect(Math.min(...Object.values(seen))).toBeGreaterThan(0)
  },
  Math.max(120_000, 200 * RUNS.numRuns),
)
