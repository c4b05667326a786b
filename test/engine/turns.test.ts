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

test('the rows of one with more than its part take turns during the first 64 tokens of a newcomer', () => {
  const steps = beside(new Watched(0, 0.1), [100], 'plain')
  const short = steps.slice(1, 64)
  for (const rows of short) expect(rows).toHaveLength(11)
  for (let i = 0; i + 4 <= short.length; i++) expect(new Set(short.slice(i, i + 4).flat()).size).toBe(41)
  for (const rows of steps.slice(65)) expect(rows).toHaveLength(41)
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

test('a long prompt of one with few slots takes turns, too', () => {
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
  expect(Math.max(...prompts.slice(1, -1))).toBeLessThanOrEqual(Math.ceil(usual / 4))
  expect(Math.min(...prompts.slice(1, -1))).toBeGreaterThan(1)
  expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  engine.dispose()
})

test("others' prompts have at most 16 tokens of a short step, whatever a usual one has", () => {
  const runner = new Watched(0, 0.01)
  const launch = runner.launch.bind(runner)
  let prompts = 0
  runner.launch = (rows) => {
    prompts = rows.reduce((sum, { tokens }) => sum + tokens.length - 1, 0)
    return launch(rows)
  }
  const engine = engineOver(runner, { now: () => runner.ms }, null, 'plain')
  const collected = new Collected()
  for (let i = 0; i < 10; i++) engine.submit(askedBy('bob', i, 60_000))
  for (let i = 0; i < 10; i++) collected.add(engine.step())
  for (let i = 10; i < 40; i++) engine.submit({ ...askedBy('bob', i, 1), prompt: promptOf(20_000, i) })
  for (let i = 0; i < 40; i++) collected.add(engine.step())
  expect(prompts).toBeGreaterThan(60)
  const request = askedBy('newcomer', 0, 20)
  engine.submit(request)
  collected.add(engine.step())
  while (collected.answer(request.id) === null) {
    expect(prompts).toBeLessThanOrEqual(16 + 5)
    collected.add(engine.step())
  }
  expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  engine.dispose()
})

test('a long prompt beside newcomers loses about a quarter of its speed, although what steps cost is learnt from answers alone', () => {
  const turns = new RowTurns()
  const msOf = (tokens: number) => 4 + 0.1 * tokens
  for (let i = 0; i < 2; i++) turns.learn(msOf(1), 1, 0)
  const of = (tenant: string, promptLeft: number) => {
    const live = {
      request: { tenant },
      prompt: { length: promptLeft },
      promptLeft,
      canSendChunk: promptLeft > 64,
      width: 1,
    }
    return Object.assign(live, {
      sequences: [{ owner: live, slot: 1, finish: null, numDrawn: 5 }],
    }) as unknown as LiveRequest
  }
  const [long, newcomer] = [of('bob', 60_000), of('new', 10)]
  const fullness = new Map([
    ['bob', 0.5],
    ['new', 0.05],
  ])
  const room = 50
  let [ms, prompts, short] = [0, 0, 0]
  for (let number = 0; number < 5000; number++) {
    const rows = turns.among(newcomer.sequences, [long, newcomer], fullness, number)
    const [, most] = turns.prompts([long], room)
    if (turns.isShort) short++
    ms += msOf(rows.length + most)
    prompts += most
    turns.learn(msOf(rows.length + most), rows.length, most)
  }
  expect(short).toBeGreaterThan(1000)
  expect(prompts / ms).toBeGreaterThan((0.7 * room) / msOf(room + 1))
})
