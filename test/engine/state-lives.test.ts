/**
 * Random lives of an engine that copies states in pieces: turns, prompts with common prefixes, forks, exports and
 * cancels at any moment, with few slots, little memory, and right and wrong guesses. Whatever is dropped, reused or
 * half copied meanwhile, every answer is that of a single request, every exported state is the one after exactly its
 * tokens, and at the end every slot is free.
 */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
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
    ? { numRuns: trials(20, 80), seed: 7 }
    : { numRuns: Number(process.env.SKEIN_LIVES) }

type Action =
  | { readonly type: 'prompt'; readonly parts: Partial<GenerateRequest> }
  | { readonly type: 'turn'; readonly id: string; readonly parts: Partial<GenerateRequest> }
  | { readonly type: 'export'; readonly id: string }
  | { readonly type: 'delete'; readonly id: string }
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
const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ type: fc.constant('prompt' as const), parts }) },
  { weight: 5, arbitrary: fc.record({ type: fc.constant('turn' as const), id, parts }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('export' as const), id }) },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('delete' as const), id }) },
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
  readonly script: Source
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

/** How often each of them happened. */
interface Seen {
  answers: number
  exports: number
  cancelled: number
  preemptions: number
  accepted: number
  rejected: number
}

async function live(actions: readonly Action[], world: World, loop: Loop, seen: Seen): Promise<void> {
  const { numSlots, inSlots, inMemory, numPrefixes, hasStore, isKept, numSpares, script } = world
  const store = hasStore ? slowStore() : null
  const { engine } = setUp({
    fake: {
      layers: LAYERS,
      numSlots,
      numSpares,
      maxSamples: numSlots + 8 * numSpares,
      maxLogits: numSlots + 8 * numSpares,
    },
    limits: { proposers: sourcesOf(script) },
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
  const exports: Promise<void>[] = []
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
      engine.submit(request)
    } else if (act.type === 'export') {
      exports.push(look(act.id))
    } else if (act.type === 'delete') {
      exports.push(
        engine.call('sessions.delete', { tenant: '', id: act.id }).then(
          () => {},
          (error) => expect(error.code).toBe('not_found'),
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
      for (let k = 0; k < act.times; k++) collected.add(engine.step())
    }
    expect(engine.failure).toBeNull()
  }
  const deadline = performance.now() + 10_000
  let numOpen = exports.length
  for (const one of exports) void one.catch(() => {}).finally(() => numOpen--)
  while (numOpen > 0 && performance.now() < deadline) {
    while (engine.hasWork) collected.add(engine.step())
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
      script: fc.constantFrom(...SOURCES),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(action, { minLength: 10, maxLength: 60 }), world, (actions, where) =>
        live(actions, where, loop, seen),
      ),
      RUNS,
    )
    // Whether a request is still running when it is to be cancelled depends on timers, so few are expected.
    expect(Math.min(...Object.values(seen))).toBeGreaterThan(5)
  },
  Math.max(120_000, 200 * RUNS.numRuns),
)
