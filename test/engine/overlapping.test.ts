/** Steps that threads compute while the engine handles the results of the step before: the answers are those without. */
import { expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import type { Flight, RowResult } from '../../src/model/runner.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'
import { Collected, engineOver, requestOf, SAMPLING } from './kit.ts'

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }

const requests: GenerateRequest[] = Array.from({ length: 16 }, (_, i) =>
  requestOf({
    id: `r${i}`,
    prompt: someTokens(1 + ((i * 29) % 90), i),
    n: 1 + (i % 3),
    maxTokens: 15 + ((i * 5) % 40),
    sampling: {
      ...SAMPLING,
      seed: BigInt(i),
      temperature: i % 4 === 0 ? 0 : 1,
      topP: i % 2 === 0 ? 0.8 : 1,
      presencePenalty: i % 3 === 0 ? 1 : 0,
      repetitionPenalty: i % 5 === 1 ? 1.3 : 1,
    },
    stop: { strings: i % 3 === 2 ? ['a b', 'c d e'] : [], tokens: [i, 40 + i, 80 + i], ignoreEos: false },
    logprobs: i % 4 === 1 ? 3 : null,
    promptLogprobs: i % 6 === 5 ? 2 : null,
  }),
)

/** However busy the machine is, steps count as short. */
const limits = { poisonFreedSlots: true, prefillChunk: 13, now: () => 0 }

/** And for each launch, whether the step before it had not been landed. */
function make(threads: number) {
  const runner = tinyRunner('cpu', { slots: 9, maxTokens: 48, threads })
  const early: boolean[] = []
  let isLanded = true
  const launch = runner.launch.bind(runner)
  runner.launch = (rows): Flight<RowResult[]> => {
    early.push(!isLanded)
    isLanded = false
    const flight = launch(rows)
    const own = early.length
    const result = () => {
      if (own === early.length) isLanded = true
      return flight.result()
    }
    return { isDone: true, result }
  }
  return { early, engine: engineOver(runner, limits, null, 'plain', tokenBytes) }
}

/** A request joins every few turns, and some are cancelled. */
function serve(engine: Engine): Collected {
  const collected = new Collected()
  const left = [...requests]
  for (let turn = 0; left.length > 0 || engine.hasWork; turn++) {
    if (turn % 5 === 0 && left.length > 0) engine.submit(left.shift()!)
    if (turn % 17 === 3) engine.submit({ ...requests[3]!, id: `gone ${turn}`, maxTokens: 90 })
    if (turn % 17 === 16) engine.cancel(`gone ${turn - 13}`)
    collected.add(engine.turn() ?? [])
  }
  return collected
}

function outcome(collected: Collected, { id, n }: GenerateRequest) {
  const events = collected.of(id)
  const prompt = events.find((event) => event.type === 'prompt')
  const answers = Array.from({ length: n }, (_, index) => collected.answer(id, index))
  return { prompt, answers, logprobs: events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []) : [])) }
}

test('with two threads steps overlap with what the engine does, and every answer is as with one', async () => {
  const [one, two] = [make(1), make(2)]
  const [plain, overlapping] = [serve(one.engine), serve(two.engine)]
  for (const request of requests) {
    const { logprobs, ...rest } = outcome(overlapping, request)
    const { logprobs: expected, ...others } = outcome(plain, request)
    expect(rest).toEqual(others)
    // Choices of a request may interleave in another way.
    expect(new Set(logprobs.map((one) => JSON.stringify(one)))).toEqual(
      new Set(expected.map((one) => JSON.stringify(one))),
    )
  }
  expect(one.early.some((early) => early)).toBe(false)
  expect(two.early.filter((early) => early).length).toBeGreaterThan(30)
  for (const { engine } of [one, two]) {
    expect(engine.failure).toBeNull()
    await engine.close()
  }
})

test.each([
  [8, true],
  [9, false],
])('steps of %i answers overlap: %s, as a new request waits for one more', async (count, expected) => {
  const { early, engine } = make(2)
  for (let i = 0; i < count; i++) engine.submit(requestOf({ id: `r${i}`, prompt: someTokens(1, i), maxTokens: 40 }))
  const collected = new Collected()
  for (let turn = 0; turn < 20; turn++) collected.add(engine.turn() ?? [])
  expect(early.slice(-8)).toEqual(Array(8).fill(expected))
  await engine.close()
})
