/** The engine with real kernels and a tiny random model: what holds for the scripted runner holds here too. */
import { beforeAll, describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { BACKENDS, someTokens, tinyRunner } from '../helpers/runner.ts'
import { SCRIPTS, type Script, scripted, type Truth } from './guesses.ts'
import { Collected, drain, engineOver, LOOPS, type Loop, requestOf, SAMPLING } from './kit.ts'

/** Sizes of the tiny model. */
const VOCAB = 512

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }

const requests: GenerateRequest[] = Array.from({ length: 12 }, (_, i) =>
  requestOf({
    id: `r${i}`,
    prompt: someTokens(1 + ((i * 29) % 90), i),
    n: 1 + (i % 3),
    maxTokens: 5 + ((i * 5) % 20),
    sampling: {
      ...SAMPLING,
      seed: BigInt(i) ** 20n % 2n ** 64n,
      temperature: i % 4 === 0 ? 0 : 1,
      topP: i % 2 === 0 ? 0.8 : 1,
      presencePenalty: i % 3 === 0 ? 1 : 0,
      repetitionPenalty: i % 5 === 1 ? 1.3 : 1,
      bannedTokens: i % 2 === 0 ? [] : [3, 4, 5],
    },
    stop: { strings: i % 3 === 2 ? ['a b', 'c d e'] : [], tokens: [i], ignoreEos: false },
    logprobs: i % 4 === 1 ? 3 : null,
    promptLogprobs: i % 6 === 5 ? 2 : null,
  }),
)

/** What a client sees, without the order of choices. */
function outcome(collected: Collected, { id, n }: GenerateRequest) {
  const events = collected.of(id)
  const prompt = events.find((event) => event.type === 'prompt')
  const answers = Array.from({ length: n }, (_, index) => collected.answer(id, index))
  const logprobs = events.flatMap((event) => (event.type === 'text' && event.index === 0 ? (event.logprobs ?? []) : []))
  return { prompt, answers, logprobs }
}

describe.each(BACKENDS)('on %s', (backend) => {
  let alone: ReturnType<typeof outcome>[]

  const make = (way: Loop, script?: Script) => {
    const runner = tinyRunner(backend, { slots: 9, maxTokens: 48, speculate: script && 'lookup' })
    const proposers = script === undefined ? [] : [scripted(script, truth, VOCAB)]
    const limits = { poisonFreedSlots: true, prefillChunk: 13, proposers }
    return engineOver(runner, limits, null, way, tokenBytes)
  }

  /** The results alone; beyond the end of an answer nothing is known. */
  const truth: Truth = (_prompt, { id }, choice) => {
    const at = requests.findIndex((request) => request.id === id)
    return alone[at]?.answers[choice]?.tokens ?? []
  }

  beforeAll(() => {
    const plain = make('plain')
    alone = requests.map((request) => {
      plain.submit(request)
      return outcome(drain(plain), request)
    })
    plain.dispose()
  })

  const all = [undefined, ...(Object.keys(SCRIPTS) as Script[])]
  const scripts = backend === 'cpu' ? all : [undefined, 'mixed' as const]
  // The reference takes seconds for each.
  test.each(LOOPS.flatMap((loop) => scripts.map((script) => [loop, script] as const)))(
    'requests that join, leave, fork or are cancelled change no other answer; %s, guesses %s',
    backend === 'cpu' ? {} : { tags: 'night' },
    (loop, script) => {
      const engine = make(loop, script)
      const collected = new Collected()
      for (const request of requests) {
        engine.submit(request)
        engine.submit({ ...request, id: `gone ${request.id}`, maxTokens: 1000 })
        for (let i = 0; i < 3; i++) collected.add(engine.step())
        engine.cancel(`gone ${request.id}`)
      }
      drain(engine, collected)
      for (const [i, request] of requests.entries()) {
        expect(outcome(collected, request)).toEqual(alone[i])
      }
      expect(alone.flatMap(({ answers }) => answers)).not.toContain(null)
      expect(engine.failure).toBeNull()
      expect(engine.stats).toMatchObject({ failed: 0, freeSlots: 9, aborted: 12 })
      const { guessedTokens, acceptedTokens } = engine.stats
      const [isRight, isWrong] = [script !== 'wrong', script !== 'right']
      if (script === undefined) expect(guessedTokens).toBe(0)
      else if (isRight) expect(acceptedTokens).toBeGreaterThan(15)
      if (script !== undefined && isWrong) expect(guessedTokens - acceptedTokens).toBeGreaterThan(15)
      engine.dispose()
    },
  )
})
