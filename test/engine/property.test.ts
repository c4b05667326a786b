/**
 * Random lives of an engine: submits, cancels and steps in any order, with forks, stops, scored prompts, rows that are
 * not finite, and right and wrong guesses. Whatever happens to others, a request gets its own answer or one error, and
 * at the end every slot is free.
 */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { trials } from '../helpers/slow.ts'
import { SOURCES, type Source, sourcesOf } from './guesses.ts'
import { Collected, drain, engineOver, LOOPS, type Loop, promptOf, requestOf, SAMPLING, soloAnswer, V } from './kit.ts'

type Action =
  | { readonly type: 'submit'; readonly parts: Partial<GenerateRequest> }
  | { readonly type: 'cancel'; readonly which: number }
  | { readonly type: 'step'; readonly times: number }
  | { readonly type: 'break'; readonly slot: number }

const stops = fc.record({
  strings: fc.array(fc.constantFrom('ab', 'b', 'ca', 'aab', '世', '\uFFFD', '🙂a'), { maxLength: 3 }),
  tokens: fc.array(fc.nat(V + 3), { maxLength: 4 }),
  ignoreEos: fc.boolean(),
})

const sampling = fc.record({
  temperature: fc.constantFrom(0, 1),
  presencePenalty: fc.constantFrom(0, 0, 0.5),
  repetitionPenalty: fc.constantFrom(1, 1, 1.1),
  seed: fc.bigInt(0n, 2n ** 64n - 1n),
  bannedTokens: fc.array(fc.nat(V - 1), { maxLength: 3 }),
})

const parts: fc.Arbitrary<Partial<GenerateRequest>> = fc
  .record({
    length: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 150 })),
    promptSeed: fc.nat(20),
    n: fc.integer({ min: 1, max: 3 }),
    maxTokens: fc.oneof(fc.nat(4), fc.nat(30)),
    sampling,
    stop: stops,
    promptLogprobs: fc.constantFrom(null, null, null, 1),
    logprobs: fc.constantFrom(null, null, 2),
    tenant: fc.constantFrom('', '', 'a', 'b', 'c'),
    priority: fc.constantFrom(0, 0, 0, 1, -1),
  })
  .map(({ length, promptSeed, sampling: given, ...rest }) => ({
    ...rest,
    prompt: promptOf(length, promptSeed),
    sampling: { ...SAMPLING, ...given },
  }))

const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ type: fc.constant('submit' as const), parts }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('cancel' as const), which: fc.nat(6) }) },
  { weight: 6, arbitrary: fc.record({ type: fc.constant('step' as const), times: fc.integer({ min: 1, max: 9 }) }) },
  { weight: 4, arbitrary: fc.record({ type: fc.constant('break' as const), slot: fc.nat(7) }) },
)

/** The outcome of every request of a run. */
interface Run {
  readonly engine: Engine
  readonly collected: Collected
  readonly requests: Map<string, GenerateRequest>
  readonly cancelled: Set<string>
}

function play(actions: readonly Action[], runner: FakeRunner, prefillChunk: number, loop: Loop, script: Source): Run {
  const limits = { poisonFreedSlots: true, prefillChunk, proposers: sourcesOf(script) }
  const engine = engineOver(runner, limits, null, loop)
  const collected = new Collected()
  const requests = new Map<string, GenerateRequest>()
  const cancelled = new Set<string>()
  for (const [i, act] of actions.entries()) {
    runner.notFinite.clear()
    if (act.type === 'submit') {
      const request = requestOf({ ...act.parts, id: `r${i}` })
      requests.set(request.id, request)
      engine.submit(request)
    } else if (act.type === 'cancel') {
      const id = engine.liveIds[act.which]
      if (id === undefined) continue
      engine.cancel(id)
      cancelled.add(id)
    } else {
      if (act.type === 'break') runner.notFinite.add(act.slot)
      for (let times = act.type === 'step' ? act.times : 3; times > 0; times--) {
        const events = engine.step()
        expect(events.filter(({ id }) => cancelled.has(id))).toEqual([])
        collected.add(events)
      }
    }
  }
  runner.notFinite.clear()
  drain(engine, collected)
  return { engine, collected, requests, cancelled }
}

const NUM_LIVES = trials(80, 600)

test.each(LOOPS)(`${NUM_LIVES} random lives, %s`, (loop) => {
  const seen = { answers: 0, errors: 0, cancelled: 0, stopped: 0, forks: 0, preemptions: 0 }
  const guesses = { accepted: 0, rejected: 0 }
  fc.assert(
    fc.property(
      fc.array(action, { minLength: 5, maxLength: 40 }),
      fc.record({
        numSlots: fc.integer({ min: 3, max: 8 }),
        maxTokens: fc.integer({ min: 5, max: 60 }),
        spareLogits: fc.nat(16),
        prefillChunk: fc.integer({ min: 1, max: 40 }),
        numSpares: fc.integer({ min: 0, max: 3 }),
        numKept: fc.constantFrom(0, 3, 20),
        keptRow: fc.constantFrom(2, 4, 31),
        script: fc.constantFrom(...SOURCES),
      }),
      (actions, { numSlots, maxTokens, spareLogits, prefillChunk, numSpares, numKept, keptRow, script }) => {
        const runner = new FakeRunner({
          numSlots,
          maxTokens,
          maxLogits: numSlots + spareLogits,
          maxSamples: numSlots + 5 * numSpares,
          ...{ numSpares, numKept, keptRow },
          vocabSize: V,
        })
        const run = play(actions, runner, prefillChunk, loop, script)
        const { engine, collected, requests, cancelled } = run
        const { guessedTokens, acceptedTokens } = engine.stats
        guesses.accepted += acceptedTokens
        guesses.rejected += guessedTokens - acceptedTokens
        expect(engine.failure).toBeNull()
        seen.preemptions += engine.stats.preemptions
        expect(engine.stats).toMatchObject({
          waiting: 0,
          running: 0,
          freeSlots: engine.info.numSlots,
          aborted: cancelled.size,
        })
        for (const [id, request] of requests) {
          if (cancelled.has(id)) {
            seen.cancelled++
            continue
          }
          if (collected.error(id) !== null) {
            seen.errors++
            expect(collected.of(id).at(-1)?.type).toBe('error')
            continue
          }
          for (let index = 0; index < request.n; index++) {
            const answer = collected.answer(id, index)
            expect(answer).toEqual(soloAnswer(request, index))
            seen.answers++
            if (answer?.reason === 'stop') seen.stopped++
          }
          if (request.n > 1) seen.forks++
        }
      },
    ),
    { numRuns: NUM_LIVES, seed: 7 },
  )
  // The property is meaningful only if all of these happened often.
  for (const count of Object.values({ ...seen, ...guesses })) expect(count).toBeGreaterThan(NUM_LIVES / 12)
})
