/**
 * States leave their slots a layer at a time: no step reads more than its budget, and what is kept is bit for bit what a
 * copy at once would be, whatever happens to requests and slots while it is on its way.
 */
import { describe, expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { stateAfter } from '../helpers/fake-runner.ts'
import {
  Collected,
  drain,
  LOOPS,
  type Loop,
  promptOf,
  requestOf,
  SAMPLING,
  soloAnswer,
} from './kit.ts'
import {
  answerAfter,
  IDENTITY,
  type SetUp,
  settle,
  setUp,
  tell,
  toldOf,
  transcript,
  turnOf,
} from './session-kit.ts'

const LAYERS = 8
const NEVER = { strings: ['no such text'], tokens: [], ignoreEos: true }
const ANY_SIZE = Number.POSITIVE_INFINITY

/** One layer a step. */
function inPieces({ fake, states, ...rest }: SetUp = {}) {
  return setUp({
    ...rest,
    fake: { layers: LAYERS, ...fake },
    states: { copyBudgetMs: 0, pieceBytes: 1, ...states },
  })
}

type Watched = ReturnType<typeof inPieces>

/** Steps until there is nothing to do; how many layers each read. */
function watch({ engine, runner }: Watched, collected = new Collected()) {
  const layers: number[] = []
  while (engine.hasWork) {
    const before = runner.layersRead
    collected.add(engine.step())
    layers.push(runner.layersRead - before)
  }
  return { layers, collected }
}

function expectRest(engine: Engine, numSlots = 8): void {
  expect(engine.failure).toBeNull()
  expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: numSlots })
}

describe('no step reads more than its budget', () => {
  test('prompts that are kept, stop strings, turns that leave their slots and turns that are saved', async () => {
    const store = openDirectStore(newFolder(), { ...IDENTITY, layers: LAYERS })
    const sizes = { slots: 1, memory: { count: 50, bytes: ANY_SIZE } }
    const watched = inPieces({ fake: { numSlots: 16 }, states: { store, sizes } })
    const { engine, runner } = watched
    const requests: GenerateRequest[] = []
    for (let i = 0; i < 4; i++) {
      const common = { prompt: promptOf(50, i), maxTokens: 20 }
      requests.push(requestOf({ id: `p${i}`, ...common }))
      requests.push(turnOf({ id: `s${i}`, ...common, stop: NEVER }, { id: `s${i}` }))
    }
    for (const request of requests) engine.submit(request)
    const collected = new Collected()
    for (;;) {
      const { layers } = watch(watched, collected)
      expect(Math.max(0, ...layers)).toBeLessThanOrEqual(1)
      if (engine.isIdle && engine.stats.states!.unsaved === 0) break
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
    for (const request of requests) {
      expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    }
    expect(engine.stats.states).toMatchObject({ inSlots: 1, saves: 4 })
    expect(engine.stats.states!.prefixes).toBeGreaterThan(0)
    expect(runner.layersRead).toBeGreaterThan(5 * LAYERS)
    expectRest(engine, 16)
    await engine.close()
  })

  test('a request that needs the slot of a kept state waits for the steps that its copy takes', async () => {
    const watched = inPieces({ fake: { numSlots: 2 }, states: { prefixBytes: 0 } })
    const { engine } = watched
    await tell(engine, turnOf({ prompt: promptOf(20), maxTokens: 6 }))
    const wide = requestOf({ id: 'wide', n: 2, maxTokens: 3 })
    engine.submit(wide)
    const { layers, collected } = watch(watched)
    // The first step has made the room for them.
    expect(layers.slice(0, 1 + LAYERS)).toEqual([0, ...new Array(LAYERS).fill(1)])
    expect(Math.max(...layers)).toBe(1)
    for (const i of [0, 1]) expect(collected.answer('wide', i)).toEqual(soloAnswer(wide, i))
    await transcript(engine)
  })

  test('where no slot is spare a prompt is not kept, and the slot of its answer is read when that is over', () => {
    const watched = inPieces({ fake: { numSlots: 1 } })
    const { engine } = watched
    engine.submit(requestOf({ prompt: promptOf(100), maxTokens: 3 }))
    const { layers } = watch(watched)
    expect(Math.max(...layers)).toBe(1)
    expect(engine.stats.states!.prefixes).toBe(1)
    expectRest(engine, 1)
  })

  test('where no slot is spare a turn with a stop string waits for its copy, and others do not', () => {
    const watched = inPieces({ fake: { numSlots: 2 }, states: { prefixBytes: 0 } })
    const { engine, runner } = watched
    const stream = requestOf({ id: 'stream', maxTokens: 40 })
    const turn = turnOf({ id: 'turn', prompt: promptOf(10), maxTokens: 4, stop: NEVER })
    for (const request of [stream, turn]) engine.submit(request)
    const collected = new Collected()
    const stepped = () => runner.log.at(-1)!.slots.length
    while (runner.layersRead === 0) collected.add(engine.step())
    while (runner.layersRead < LAYERS) {
      expect(stepped()).toBe(1)
      const before = runner.layersRead
      collected.add(engine.step())
      expect(runner.layersRead - before).toBe(1)
    }
    collected.add(engine.step())
    expect(stepped()).toBe(2)
    expect(runner.layersRead).toBe(LAYERS)
    watch(watched, collected)
    for (const request of [stream, turn]) {
      expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    }
    expectRest(engine, 2)
  })

  test('nobody else runs: the copy that a turn waits for is made at once', () => {
    const watched = inPieces({ fake: { numSlots: 1 }, states: { prefixBytes: 0 } })
    watched.engine.submit(turnOf({ prompt: promptOf(10), maxTokens: 4, stop: NEVER }))
    const { layers } = watch(watched)
    expect(layers.slice(0, 3)).toEqual([0, LAYERS, 0])
    expectRest(watched.engine, 1)
  })

  test('a small state is copied at once', () => {
    const watched = inPieces({ states: { pieceBytes: 32 * LAYERS } })
    watched.engine.submit(requestOf({ prompt: promptOf(100), maxTokens: 3 }))
    const { layers } = watch(watched)
    expect(Math.max(...layers)).toBe(LAYERS)
    expect(watched.runner.calls.copies).toBe(0)
  })
})

describe('no step writes more than its budget', () => {
  /** A session whose head is in memory and in no slot. */
  async function inMemory(fake: SetUp['fake'] = {}) {
    const sizes = { slots: 0, memory: { count: 50, bytes: ANY_SIZE } }
    const watched = inPieces({ fake, states: { prefixBytes: 0, sizes } })
    await tell(watched.engine, turnOf({ prompt: promptOf(20), maxTokens: 6 }))
    return { ...watched, history: await transcript(watched.engine) }
  }

  test('while others run a state goes into its slot in pieces, and is stepped when it is whole', async () => {
    const { engine, runner, history } = await inMemory()
    const stream = requestOf({ id: 'stream', maxTokens: 40 })
    const collected = new Collected()
    engine.submit(stream)
    collected.add(engine.step())
    const turn = turnOf({ id: 'turn', prompt: promptOf(4), maxTokens: 6 })
    engine.submit(turn)
    for (let layer = 1; layer <= LAYERS; layer++) {
      collected.add(engine.step())
      expect(runner.layersWritten).toBe(layer)
      expect(runner.log.at(-1)!.rows).toBe(layer < LAYERS ? 1 : 2)
    }
    await settle(engine, collected)
    expect(collected.answer('turn')).toEqual(answerAfter(history, turn).answer)
    expect(collected.answer('stream')).toEqual(soloAnswer(stream))
    await transcript(engine)
    expectRest(engine)
  })

  test('where nobody else runs it goes there at once', async () => {
    const { engine, runner } = await inMemory()
    engine.submit(turnOf({ prompt: promptOf(4), maxTokens: 6 }))
    engine.step()
    expect(runner.layersWritten).toBe(LAYERS)
    expect(runner.log.at(-1)!.rows).toBe(1)
  })

  test('a slot that is given up half written is free, and whoever has it next begins as alone', async () => {
    const { engine, runner, history } = await inMemory({ numSlots: 2 })
    const collected = new Collected()
    engine.submit(requestOf({ id: 'stream', maxTokens: 200 }))
    collected.add(engine.step())
    const turn = turnOf({ id: 'turn', prompt: promptOf(4), maxTokens: 6 })
    engine.submit(turn)
    while (runner.layersWritten < 3) collected.add(engine.step())
    engine.cancel('turn')
    expect(engine.stats.freeSlots).toBe(1)
    for (const request of [requestOf({ id: 'next' }), { ...turn, id: 'again' }]) {
      engine.submit(request)
      while (collected.answer(request.id) === null) collected.add(engine.step())
      const alone = request.session ? answerAfter(history, request).answer : soloAnswer(request)
      expect(collected.answer(request.id)).toEqual(alone)
    }
    engine.cancel('stream')
    drain(engine)
    expectRest(engine, 2)
  })

  test('a kept prefix and the states of a mixture are written in pieces, too', () => {
    const watched = inPieces({ fake: { numSlots: 4, maxTokens: 64 } })
    const { engine, runner } = watched
    const request = requestOf({ id: 'first', prompt: promptOf(100), maxTokens: 3 })
    engine.submit(request)
    watch(watched)
    for (const [i, name] of ['x', 'y'].entries()) {
      engine.startStates.add(name, stateAfter(promptOf(10, i), LAYERS))
    }
    const collected = new Collected()
    engine.submit(requestOf({ id: 'stream', maxTokens: 60 }))
    collected.add(engine.step())
    const mixture = ['x', 'y'].map((startState) => ({ startState, weight: 0.5 }))
    engine.submit({ ...request, id: 'kept', prompt: promptOf(104) })
    engine.submit(requestOf({ id: 'mixed', prompt: promptOf(5), mixture }))
    const before = runner.layersWritten
    // Those of a mixture have pieces of a megabyte, of which such a state is one.
    const written = Array.from({ length: LAYERS + 2 }, () => {
      collected.add(engine.step())
      return runner.layersWritten - before
    })
    expect(written).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 16, 24])
    watch(watched, collected)
    expect(toldOf(collected, 'kept').cachedTokens).toBeGreaterThan(90)
    for (const id of ['kept', 'mixed', 'stream']) expect(collected.answer(id)).not.toBeNull()
    expectRest(engine, 4)
  })
})

describe('a copy on its way', () => {
  test('is no prefix before it is whole, and then that of its moment', () => {
    // The prompt takes two steps: in the first its slot is cleared, which is all that a step has time for.
    const watched = inPieces({ fake: { maxTokens: 32 } })
    const { engine, runner } = watched
    const request = requestOf({ prompt: promptOf(60), maxTokens: 40 })
    engine.submit(request)
    const collected = new Collected()
    while (runner.layersRead === 0) collected.add(engine.step())
    while (runner.layersRead < LAYERS - 1) {
      expect(engine.stats.states!.prefixes).toBe(0)
      collected.add(engine.step())
    }
    collected.add(engine.step())
    expect(engine.stats.states!.prefixes).toBe(1)
    watch(watched, collected)
    expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    const again = { ...request, id: 'again' }
    engine.submit(again)
    const later = watch(watched).collected
    expect(toldOf(later, 'again').cachedTokens).toBe(59)
    expect(later.answer('again')).toEqual(soloAnswer(again))
  })

  test('for a stop string stays in its slot while others are spare, and goes with its request', () => {
    const { engine, runner } = inPieces({ states: { prefixBytes: 0 } })
    const request = turnOf({ prompt: promptOf(10), maxTokens: 40, stop: NEVER })
    engine.submit(request)
    for (let i = 0; i < 20; i++) engine.step()
    expect(engine.stats.freeSlots).toBe(7)
    expect(runner.layersRead).toBe(0)
    expect(runner.calls.copies).toBe(1)
    engine.cancel('a')
    drain(engine)
    expectRest(engine)
  })

  test('for a stop string is read where slots are scarce, and goes with its request, too', () => {
    const numSlots = 3
    const { engine, runner } = inPieces({ fake: { numSlots }, states: { prefixBytes: 0 } })
    engine.submit(turnOf({ prompt: promptOf(10), maxTokens: 40, stop: NEVER }))
    while (runner.layersRead < 3) engine.step()
    expect(engine.stats.freeSlots).toBe(numSlots - 1)
    engine.cancel('a')
    const { layersRead } = runner
    drain(engine)
    expect(runner.layersRead).toBe(layersRead)
    expectRest(engine, numSlots)
  })

  test('of numbers that break is never kept', () => {
    const watched = inPieces({ fake: { maxTokens: 32 } })
    const { engine, runner } = watched
    const request = requestOf({ prompt: promptOf(60), maxTokens: 40 })
    engine.submit(request)
    while (runner.layersRead < 3) engine.step()
    for (let slot = 0; slot < 8; slot++) runner.notFinite.add(slot)
    expect(watch(watched).collected.error(request.id)).toBe('kernel_failed')
    expect(engine.stats.states!.prefixes).toBe(0)
    expectRest(engine)
  })

  test('of a session that is deleted ends, and its slot is free', async () => {
    const sizes = { slots: 0, memory: { count: 50, bytes: ANY_SIZE } }
    const { engine, runner } = inPieces({ states: { prefixBytes: 0, sizes } })
    engine.submit(turnOf({ prompt: promptOf(10), maxTokens: 2 }))
    while (runner.layersRead < 3) engine.step()
    await engine.call('sessions.delete', { tenant: '', id: 's' })
    const { layersRead } = runner
    drain(engine)
    expect(runner.layersRead).toBe(layersRead)
    expectRest(engine)
  })

  test('is made whole when the engine is closed', async () => {
    const folder = newFolder()
    const identity = { ...IDENTITY, layers: LAYERS }
    const open = () => {
      const store = openDirectStore(folder, identity)
      return inPieces({ states: { store, prefixBytes: 0 } })
    }
    const first = open()
    const turn = turnOf({ prompt: promptOf(10), maxTokens: 6 }, { onCancel: 'keep' })
    first.engine.submit(turn)
    while (first.runner.layersRead < 3) {
      first.engine.step()
      await new Promise((resolve) => setTimeout(resolve, 0))
    }
    expect(first.runner.layersRead).toBeLessThan(LAYERS)
    await first.engine.close()
    const { engine } = open()
    const next = turnOf({ prompt: promptOf(4), maxTokens: 6 })
    const history = await transcript(engine)
    const told = await tell(engine, next)
    expect(told.collected.answer('a')).toEqual(answerAfter(history, next).answer)
    await engine.close()
  })

  test('for an export is shared with the step that makes it, too', async () => {
    const sizes = { slots: 0, memory: { count: 50, bytes: ANY_SIZE } }
    const { engine, runner } = inPieces({ states: { prefixBytes: 0, sizes } })
    engine.submit(turnOf({ prompt: promptOf(10), maxTokens: 2 }))
    while (runner.layersRead < 3) engine.step()
    await transcript(engine)
    expect(runner.layersRead).toBe(LAYERS)
    expectRest(engine)
  })
})

/** Prompts that share beginnings, turns with stop strings, cancels; few slots, so that spares come and go. */
async function live(loop: Loop, seed: number): Promise<number> {
  let state = seed
  const pick = (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  const numSlots = 2 + pick(5)
  const sizes = { slots: pick(3), memory: { count: 1000, bytes: ANY_SIZE } }
  const { engine } = inPieces({
    loop,
    fake: { numSlots, maxTokens: 64 },
    limits: { prefillChunk: 16 },
    states: { sizes, prefixBytes: 20_000, pieceBytes: 32 * (1 + pick(3)) },
  })
  let cachedTokens = 0
  const known = new Set<string>()
  for (let round = 0; round < 12; round++) {
    const collected = new Collected()
    const asked: GenerateRequest[] = []
    const histories = new Map<string, Int32Array>()
    for (let i = 1 + pick(6); i > 0; i--) {
      const id = `r${round}-${i}`
      const prompt = Int32Array.of(...promptOf(40 + pick(2) * 30, pick(3)), ...promptOf(pick(9), i))
      const stop = { strings: pick(2) ? ['ab', 'ca'] : [], tokens: [], ignoreEos: true }
      const sampling = { ...SAMPLING, seed: BigInt(pick(1000)) }
      const parts = { id, prompt, stop, sampling, maxTokens: 1 + pick(30) }
      const session = `s${i}`
      const isTurn = pick(2) === 0
      const request = isTurn ? turnOf(parts, { id: session }) : requestOf(parts)
      if (isTurn && known.has(session)) {
        histories.set(id, await transcript(engine, session))
      }
      asked.push(request)
    }
    for (const request of asked) engine.submit(request)
    const doomed = asked.filter(() => pick(5) === 0)
    for (const { id } of doomed) {
      for (let i = pick(9); i > 0; i--) collected.add(engine.step())
      engine.cancel(id)
    }
    await settle(engine, collected)
    for (const request of asked) {
      const isOver = collected.of(request.id).some(({ type }) => type === 'finish')
      if (!isOver) {
        expect(doomed).toContain(request)
        continue
      }
      const history = histories.get(request.id) ?? new Int32Array(0)
      if (request.session) {
        const { answer } = answerAfter(history, request)
        expect(collected.answer(request.id)).toEqual(answer)
        known.add(request.session.id)
        await transcript(engine, request.session.id)
      } else expect(collected.answer(request.id)).toEqual(soloAnswer(request))
      cachedTokens += toldOf(collected, request.id).cachedTokens ?? 0
    }
    expectRest(engine, numSlots)
  }
  engine.dispose()
  return cachedTokens
}

test.each(LOOPS)(
  '40 lives: every answer and every kept state is that of its tokens; %s',
  async (loop) => {
    let cachedTokens = 0
    for (let seed = 1; seed <= 40; seed++) cachedTokens += await live(loop, seed)
    expect(cachedTokens).toBeGreaterThan(1000)
  },
)

test('the memory of a prefix that is dropped while it is on its way into a slot is not written before it has arrived', () => {
  for (let wait = 0; wait < 16; wait++) {
    const { engine, runner } = inPieces({ fake: { numSlots: 4 }, limits: { prefillChunk: 10 } })
    const collected = new Collected()
    const step = () => collected.add(engine.step())
    const begin = promptOf(50)
    const continued = (id: string, last: number) =>
      requestOf({ id, prompt: Int32Array.of(...begin, last), maxTokens: 30 })
    engine.submit(requestOf({ id: 'first', prompt: begin, maxTokens: 1 }))
    drain(engine, collected)
    // It begins with that prefix too, and takes it along when it fails.
    engine.submit(continued('broken', 3))
    while (collected.of('broken').length < 2) step()
    const slot = runner.log.at(-1)!.slots[0]!
    engine.submit(requestOf({ id: 'stream', maxTokens: 100 }))
    const turn = { prompt: promptOf(60), maxTokens: 4, stop: NEVER }
    engine.submit(turnOf({ id: 'turn', ...turn }))
    for (let i = 0; i < wait; i++) step()
    const filled = continued('filled', 4)
    engine.submit(filled)
    // The slot that becomes free is taken, so the turn's state is read from its own slot, before anything else is done.
    engine.submit(requestOf({ id: 'next', maxTokens: 60 }))
    step()
    step()
    runner.notFinite.add(slot)
    step()
    runner.notFinite.clear()
    expect(collected.of('broken').at(-1)!.type).toBe('error')
    drain(engine, collected)
    expect(collected.answer('filled'), `after ${wait} steps`).toEqual(soloAnswer(filled))
  }
})
