/**
 * State transfers between slots and memory, as late as possible and in any order (DeferredRunner): what is kept equals
 * an immediate copy bit for bit, whatever happens to requests and slots meanwhile, and steps continue.
 */
import { describe, expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { SlotPool } from '../../src/engine/slots.ts'
import { StateTransfers } from '../../src/engine/state-transfers.ts'
import type { StateData } from '../../src/model/runner.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { FakeRunner, stateAfter } from '../helpers/fake-runner.ts'
import { randomOf } from '../helpers/random.ts'
import { trials } from '../helpers/slow.ts'
import { Collected, LOOPS, type Loop, promptOf, requestOf, SAMPLING, soloAnswer } from './kit.ts'
import { answerAfter, settle, setUp, toldOf, transcript, turnOf } from './session-kit.ts'

const LAYERS = 8
const ANY_SIZE = Number.POSITIVE_INFINITY

function expectRest(engine: Engine, numSlots = 8): void {
  expect(engine.failure).toBeNull()
  expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: numSlots })
}

/** Prompts with shared prefixes, turns with stop strings, cancels; few slots, so that spare slots come and go. */
async function live(loop: Loop, seed: number): Promise<{ cachedTokens: number; reused: number }> {
  const pick = randomOf(seed)
  const numSlots = 2 + pick(5)
  const sizes = { slots: pick(3), memory: { count: 1000, bytes: ANY_SIZE } }
  const { engine, runner } = setUp({
    loop,
    fake: { numSlots, maxTokens: 64, layers: LAYERS },
    limits: { prefillChunk: 16 },
    states: { sizes, prefixBytes: 20_000 },
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
  return { cachedTokens, reused: runner.calls.reused }
}

const NUM_LIVES = trials(3, 40)

test.each(LOOPS)(
  `${NUM_LIVES} lives: every answer and every kept state equals that of its tokens; %s`,
  async (loop) => {
    let [cachedTokens, reused] = [0, 0]
    for (let seed = 1; seed <= NUM_LIVES; seed++) {
      const life = await live(loop, seed)
      cachedTokens += life.cachedTokens
      reused += life.reused
    }
    expect(cachedTokens).toBeGreaterThan(25 * NUM_LIVES)
    expect(reused).toBeGreaterThan(5 * NUM_LIVES)
  },
)

describe('between slots and memory', () => {
  function late(numSlots = 4) {
    const runner = new DeferredRunner(new FakeRunner({ numSlots, layers: LAYERS }))
    const slots = new SlotPool(runner, numSlots, true)
    const transfers = new StateTransfers(runner, slots)
    const turns = () => {
      for (let left = 100; transfers.isBusy && left > 0; left--) transfers.turn()
    }
    return { runner, slots, transfers, turns }
  }

  test('a slot that is released while a state is being written into it becomes free when the write is over', () => {
    const { slots, transfers, turns } = late()
    const slot = slots.acquire()
    let isDone = false
    transfers.write(slot, stateAfter([1, 2], LAYERS), () => {
      isDone = true
    })
    expect(isDone).toBe(false)
    transfers.free(slot)
    expect([slots.numFree, transfers.numLeaving]).toEqual([3, 1])
    turns()
    expect([slots.numFree, transfers.numLeaving]).toEqual([4, 0])
    expect(isDone).toBe(false)
  })

  test('a slot that is being read is free at once, and the copy is available when it is complete', () => {
    const { runner, slots, transfers, turns } = late()
    const slot = slots.acquire()
    runner.clearSlot(slot)
    let copy: StateData | null = null
    transfers.readAndFree(slot, {
      whole: (state) => {
        copy = state
      },
    })
    expect([slots.numFree, copy]).toEqual([4, null])
    turns()
    expect(copy).toEqual(stateAfter([], LAYERS))
  })

  test('a waiting read keeps its slot; without a slot there is no copy', () => {
    const { runner, slots, transfers, turns } = late()
    const taken: number[] = []
    const dropped: number[] = []
    const whole: number[] = []
    const all = [0, 1, 2, 3].map(() => slots.acquire())
    for (const slot of all) {
      runner.clearSlot(slot)
      transfers.read(slot, {
        taken: () => taken.push(slot),
        whole: () => whole.push(slot),
        dropped: () => dropped.push(slot),
      })
    }
    // Two at a time.
    expect(taken).toEqual(all.slice(0, 2))
    transfers.free(all[3]!)
    expect(dropped).toEqual([all[3]])
    turns()
    expect(taken).toEqual(all.slice(0, 3))
    expect(whole.toSorted()).toEqual(all.slice(0, 3).toSorted())
  })

  test('the memory of a state being written into a slot is not reused before the write is over', () => {
    const { runner, slots, transfers, turns } = late()
    const [to, from] = [slots.acquire(), slots.acquire()]
    for (const slot of [to, from]) runner.clearSlot(slot)
    const state = stateAfter([1, 2], LAYERS)
    transfers.write(to, state, () => {})
    transfers.giveBack(state)
    turns()
    let copy: StateData | null = null
    transfers.read(to, {
      whole: (read) => {
        copy = read
      },
    })
    turns()
    expect(copy).toEqual(stateAfter([1, 2], LAYERS))
    transfers.giveBack(state)
    expect(state[0]).toHaveLength(0)
  })

  test('a copy that nobody needs any more is never used', () => {
    const { runner, slots, transfers, turns } = late()
    const slot = slots.acquire()
    runner.clearSlot(slot)
    const read = transfers.read(slot, {
      whole: () => {
        throw new Error('it was cancelled')
      },
    })
    read.cancel()
    turns()
    expect(transfers.isBusy).toBe(false)
  })
})
