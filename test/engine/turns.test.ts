/** Short steps while a newcomer is answered: who is in them, and what they may cost. */
import { expect, test } from 'vitest'
import { RowTurns } from '../../src/engine/fairness/turns.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import type { LiveRequest } from '../../src/engine/sequence.ts'
import type { BatchRow, Flight, RowResult } from '../../src/model/runner.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, drain, engineOver, type Loop, promptOf, requestOf, SAMPLING, soloAnswer, V } from './kit.ts'

const FOR_EVER = { strings: [], tokens: [], ignoreEos: true }

function askedBy(tenant: string, number: number, maxTokens: number): GenerateRequest {
  const sampling = { ...SAMPLING, seed: BigInt(number) }
  const prompt = promptOf(5, number)
  return requestOf({ id: `${tenant}${number}`, tenant, prompt, maxTokens, stop: FOR_EVER, sampling })
}

/** Remembers the slots of each step, which takes `base` milliseconds and `each` for each row. */
class Watched extends FakeRunner {
  readonly steps: number[][] = []
  ms = 0
  readonly #base: number
  readonly #each: number

  constructor(base: number, each: number) {
    super({ vocabSize: V, numSlots: 64, maxTokens: 128 })
    this.#base = base
    this.#each = each
  }

  override launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    this.steps.push(rows.map(({ slot }) => slot))
    this.ms += this.#base + this.#each * rows.length
    return super.launch(rows)
  }
}

/** Bob has 40 slots when others ask, one after the other, for so many tokens each. */
function beside(runner: Watched, lengths: readonly number[], loop: Loop, own = 150): number[][] {
  const engine = engineOver(runner, { now: () => runner.ms }, null, loop)
  const flood = Array.from({ length: 40 }, (_, i) => askedBy('bob', i, own))
  for (const request of flood) engine.submit(request)
  const collected = new Collected()
  for (let i = 0; i < 20; i++) collected.add(engine.step())
  runner.steps.length = 0
  const others = lengths.map((length, i) => askedBy(`newcomer ${i} `, i, length))
  for (const request of others) {
    engine.submit(request)
    for (let i = 0; collected.answer(request.id) === null; i++) {
      expect(i).toBeLessThan(1000)
      collected.add(engine.step())
    }
    expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  }
  const steps = [...runner.steps]
  if (own > 1000) for (const { id } of flood) engine.cancel(id)
  drain(engine, collected)
  if (own < 1000) for (const request of flood) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  return steps
}

test('the rows of one with more than its part wait during the first 64 tokens of a newcomer', () => {
  const steps = beside(new Watched(0, 0.1), [100], 'plain')
  for (const rows of steps.slice(1, 64)) expect(rows).toHaveLength(1)
  for (const rows of steps.slice(65)) expect(rows).toHaveLength(41)
})

test('where that has cost much they take turns: each is in one step of four', () => {
  const steps = beside(new Watched(4, 0.1), Array(6).fill(24), 'plain', 60_000)
  const inTurns = steps.filter((rows) => rows.length === 11)
  expect(steps.findIndex((rows) => rows.length === 11)).toBeGreaterThan(50)
  expect(inTurns.length).toBeGreaterThan(20)
  const from = steps.indexOf(inTurns[0]!)
  const four = steps.slice(from, from + 4)
  expect(four.map((rows) => rows.length)).toEqual([11, 11, 11, 11])
  expect(new Set(four.flat()).size).toBe(41)
})

test('on a device every step has all rows, as one with fewer takes as long', () => {
  for (const rows of beside(new Watched(0, 0.1), [100], 'overlapped').slice(2, 90))
    expect(rows.length).toBeGreaterThanOrEqual(40)
})

test('where a row of a short step takes longer, all short steps together cost a quarter of the time', () => {
  const steps = beside(new Watched(4, 0.1), Array(40).fill(24), 'plain', 60_000)
  const ms = steps.reduce((sum, slots) => sum + 4 + 0.1 * slots.length, 0)
  const lost = ms - (steps.flat().length / 41) * 8.1
  // Half a second more may be spent at once; steps with prompts are not counted, 40 of some 3 ms.
  expect(lost).toBeLessThan(0.25 * ms + 500 + 120)
  expect(lost).toBeGreaterThan(500)
})

test('a newcomer is answered whenever it comes, beside a few answers and many prompts of one with more than its part', () => {
  // One step in 33 has no prompts, to measure answers alone.
  for (let before = 0; before < 34; before++) {
    const runner = new Watched(0, 0.1)
    const engine = engineOver(runner, { now: () => runner.ms }, null, 'plain')
    const collected = new Collected()
    for (let i = 0; i < 10; i++) engine.submit(askedBy('bob', i, 60_000))
    for (let i = 0; i < 10; i++) collected.add(engine.step())
    for (let i = 10; i < 40; i++) engine.submit({ ...askedBy('bob', i, 1), prompt: promptOf(2000, i) })
    for (let i = 0; i < before; i++) collected.add(engine.step())
    const request = askedBy('newcomer', 0, 4)
    engine.submit(request)
    let steps = 0
    for (; collected.answer(request.id) === null && steps < 100; steps++) collected.add(engine.step())
    expect({ before, steps }).toEqual({ before, steps: 4 })
    engine.dispose()
  }
})

test('a long prompt of one with few slots waits, too', () => {
  const runner = new Watched(0, 0)
  const launch = runner.launch.bind(runner)
  const prompts: number[] = []
  runner.launch = (rows) => {
    const tokens = rows.map((row) => row.tokens.length)
    prompts.push(Math.max(...tokens))
    runner.ms += 0.1 * tokens.reduce((sum, count) => sum + count, 0)
    return launch(rows)
  }
  const engine = engineOver(runner, { now: () => runner.ms }, null, 'plain')
  const collected = new Collected()
  engine.submit(askedBy('carol', 0, 60_000))
  engine.submit({ ...askedBy('bob', 0, 1), prompt: promptOf(20_000, 0) })
  for (let i = 0; i < 100; i++) collected.add(engine.step())
  const usual = Math.max(...prompts.slice(-30))
  // 5 ms.
  expect(usual).toBeGreaterThan(40)
  const request = askedBy('newcomer', 0, 20)
  engine.submit(request)
  collected.add(engine.step())
  prompts.length = 0
  while (collected.answer(request.id) === null) collected.add(engine.step())
  expect(new Set(prompts.slice(1, -1))).toEqual(new Set([1]))
  expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  engine.dispose()
})

/** One of so many prompt tokens; `sequences` is what of it can run. */
function liveOf(tenant: string, promptLeft: number): LiveRequest {
  const live = {
    request: { tenant },
    prompt: { length: promptLeft },
    promptLeft,
    canSendChunk: promptLeft > 64,
    width: 1,
  }
  const sequence = { owner: live, slot: 1, finish: null, numDrawn: 5, canGoOn: true, isSettled: true, numAwaited: 0 }
  // What RowTurns reads.
  return Object.assign(live, { numChunksSent: 0, sequences: [sequence] }) as unknown as LiveRequest
}

const FULLNESS = new Map([
  ['bob', 0.5],
  ['new', 0.05],
])

test('whoever has more than an eighth of its part waits, and nobody else', () => {
  const [bob, carol, newcomer] = [liveOf('bob', 0), liveOf('carol', 0), liveOf('new', 10)]
  const fullness = new Map([...FULLNESS, ['carol', 0.125]])
  const ready = [bob, carol, newcomer].flatMap(({ sequences }) => sequences)
  const rows = new RowTurns().among(ready, [bob, carol, newcomer], fullness, 1)
  expect(rows.map(({ owner }) => owner.request.tenant)).toEqual(['carol', 'new'])
})

test("others' prompts have no tokens of a short step, and at most 16 where they take turns", () => {
  const turns = new RowTurns()
  const [long, newcomer] = [liveOf('bob', 60_000), liveOf('new', 10)]
  const mostOf = (number: number) => {
    const rows = turns.among(newcomer.sequences, [long, newcomer], FULLNESS, number)
    expect(rows).toEqual(newcomer.sequences)
    return turns.prompts([long], 200)[1]
  }
  expect(mostOf(1)).toBe(0)
  turns.learn(1, 400, 1, 0)
  expect(mostOf(2)).toBe(16)
})

test('a long prompt beside newcomers loses about a quarter of its speed, although what steps cost is learnt from answers alone', () => {
  const turns = new RowTurns()
  const msOf = (tokens: number) => 4 + 0.1 * tokens
  for (let i = 0; i < 2; i++) turns.learn(-i, msOf(1), 1, 0)
  const [long, newcomer] = [liveOf('bob', 60_000), liveOf('new', 10)]
  const room = 50
  let [ms, prompts, short] = [0, 0, 0]
  for (let number = 0; number < 5000; number++) {
    const rows = turns.among(newcomer.sequences, [long, newcomer], FULLNESS, number)
    const [, most] = turns.prompts([long], room)
    if (turns.isShort) short++
    // It is learnt from the first step that is not short.
    if (number > 256) {
      ms += msOf(rows.length + most)
      prompts += most
    }
    turns.learn(number, msOf(rows.length + most), rows.length, most)
  }
  expect(short).toBeGreaterThan(1000)
  expect(prompts / ms).toBeGreaterThan((0.7 * room) / msOf(room + 1))
})
