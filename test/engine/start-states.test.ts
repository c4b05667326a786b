/** Tuned start states in the engine: each request begins with its own, whatever runs or is cached beside it. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import type { MixedState } from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { SkeinError } from '../../src/errors.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { StateData } from '../../src/model/runner.ts'
import { logitsOfLast } from '../helpers/logits.ts'
import { ARCHITECTURES, someTokens, tinyRunner } from '../helpers/runner.ts'
import { drain, requestOf, SAMPLING } from './kit.ts'

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }
const GREEDY = { ...SAMPLING, temperature: 0 }

function randomState({ info }: ModelRunner, seed: number): StateData {
  const { layers, channels, heads, headSize } = info.stateShape
  const count = layers * heads * headSize ** 2
  return [
    new Float32Array(layers * 2 * channels),
    Float32Array.from({ length: count }, (_, i) => 2 * Math.sin(seed * (i + 1))),
  ]
}

/** The answer by definition: the best token after all tokens so far, computed from the start for each. */
function greedy(runner: ModelRunner, prompt: Int32Array, start: StateData | null, count: number) {
  const tokens = [...prompt]
  for (let i = 0; i < count; i++) {
    const logits = logitsOfLast(runner, Int32Array.from(tokens), start)
    tokens.push(logits.reduce((best, value, id) => (value > logits[best]! ? id : best), 0))
  }
  return tokens.slice(prompt.length)
}

describe.each(ARCHITECTURES)('%s', (architecture) => {
  let runner: ModelRunner
  let engine: Engine
  const states = new Map<string, StateData>()
  const runnerOf = () => tinyRunner('cpu', { architecture, slots: 8, maxTokens: 64 })
  const wanted = (name: string | undefined, prompt: Int32Array, count: number) =>
    greedy(runner, prompt, name === undefined ? null : states.get(name)!, count)

  beforeAll(() => {
    runner = runnerOf()
    engine = new Engine(runnerOf(), tokenBytes, { poisonFreedSlots: true }, DEFAULT_STATE_OPTIONS)
    for (const [i, name] of ['poet', 'tale-2', 'x.y_z'].entries()) {
      states.set(name, randomState(runner, i + 1))
      engine.startStates.add(name, states.get(name)!)
    }
  })
  afterAll(() => {
    engine.dispose()
    runner.dispose()
  })

  test('different states run in one batch, each as alone', () => {
    const prompt = someTokens(20, 5)
    const names = [undefined, 'poet', 'tale-2', undefined, 'poet', 'x.y_z']
    for (const [i, startState] of names.entries())
      engine.submit(requestOf({ id: `r${i}`, prompt, maxTokens: 12, sampling: GREEDY, startState }))
    const collected = drain(engine)
    const answers = names.map((_, i) => collected.answer(`r${i}`)!.tokens)
    expect(answers).toEqual(names.map((name) => wanted(name, prompt, 12)))
    expect(new Set(answers.map(String)).size).toBe(4)
  })

  test('every choice of a request begins with its state', () => {
    const prompt = someTokens(5, 6)
    const parts = { prompt, n: 3, maxTokens: 6, sampling: GREEDY, startState: 'tale-2' }
    engine.submit(requestOf({ id: 'choices', ...parts }))
    const collected = drain(engine)
    for (let index = 0; index < 3; index++)
      expect(collected.answer('choices', index)!.tokens).toEqual(wanted('tale-2', prompt, 6))
  })

  test('a prefix read with one state is found for that state only', () => {
    const prompt = someTokens(60, 7)
    const ask = (id: string, startState: string | undefined) => {
      engine.submit(requestOf({ id, prompt, maxTokens: 4, sampling: GREEDY, startState }))
      const collected = drain(engine)
      const event = collected.of(id).find(({ type }) => type === 'prompt')
      const tokens = collected.answer(id)!.tokens
      return { tokens, cached: event?.type === 'prompt' ? event.cachedTokens : undefined }
    }
    for (const [i, name] of [undefined, 'poet', 'tale-2'].entries()) {
      const tokens = wanted(name, prompt, 4)
      expect(ask(`first ${i}`, name)).toEqual({ tokens, cached: 0 })
      expect(ask(`again ${i}`, name)).toEqual({ tokens, cached: 59 })
    }
  })

  test('a name that is replaced begins with its new state, and finds no prefix of the old', async () => {
    const prompt = someTokens(60, 8)
    engine.startStates.readFile = (path) => Promise.resolve(randomState(runner, Number(path)))
    for (const seed of [21, 22]) {
      const names = await engine.call('startStates.add', { name: 'new', path: String(seed) })
      expect(names).toEqual(['poet', 'tale-2', 'x.y_z', 'new'])
      const again = engine.call('startStates.add', { name: 'new', path: '0' })
      await expect(again).rejects.toMatchObject({ code: 'conflict' })
      engine.submit(requestOf({ id: 'new', prompt, maxTokens: 4, sampling: GREEDY, startState: 'new' }))
      // It has its state from here on, whatever happens to the name.
      const left = await engine.call('startStates.remove', { name: 'new' })
      expect([left, engine.info.startStates]).toEqual([names.slice(0, 3), names.slice(0, 3)])
      const collected = drain(engine)
      const expected = greedy(runner, prompt, randomState(runner, seed), 4)
      expect(collected.answer('new')!.tokens).toEqual(expected)
      expect(collected.of('new').find(({ type }) => type === 'prompt')).toMatchObject({ cachedTokens: 0 })
    }
    for (const seed of [23, 24]) {
      const path = String(seed)
      await engine.call('startStates.add', { name: 'new', path, replace: true })
      engine.submit(requestOf({ id: path, prompt, maxTokens: 4, sampling: GREEDY, startState: 'new' }))
      const collected = drain(engine)
      expect(collected.answer(path)!.tokens).toEqual(greedy(runner, prompt, randomState(runner, seed), 4))
      expect(collected.of(path)[0]).toMatchObject({ cachedTokens: 0 })
    }
    // An unreadable one leaves the old one in place.
    engine.startStates.readFile = () => Promise.reject(new SkeinError('not_found', 'no such file'))
    const missing = engine.call('startStates.add', { name: 'new', path: '', replace: true })
    await expect(missing).rejects.toMatchObject({ code: 'not_found' })
    expect(await engine.call('startStates.remove', { name: 'new' })).toHaveLength(3)
    const gone = engine.call('startStates.remove', { name: 'new' })
    await expect(gone).rejects.toMatchObject({ code: 'not_found' })
  })

  test('an unknown name is refused, and nothing is left behind', () => {
    expect(() => engine.submit(requestOf({ startState: 'pote' }))).toThrow(
      expect.objectContaining({
        code: 'not_found',
        message: 'no start state of that name; loaded: poet, tale-2, x.y_z',
        param: 'startState',
      }),
    )
    expect(engine.hasWork).toBe(false)
  })

  /** By definition: every state reads all tokens so far, and the next token is the best of the summed logits. */
  function greedyOfMixture(prompt: Int32Array, mixture: readonly MixedState[], count: number) {
    const tokens = [...prompt]
    for (let i = 0; i < count; i++) {
      const sum = new Float64Array(runner.info.vocabSize)
      for (const { startState, weight } of mixture) {
        const start = startState === null ? null : states.get(startState)!
        const logits = logitsOfLast(runner, Int32Array.from(tokens), start)
        for (const [id, value] of logits.entries()) sum[id]! += weight * value
      }
      tokens.push(sum.reduce((best, value, id) => (value > sum[best]! ? id : best), 0))
    }
    return tokens.slice(prompt.length)
  }

  test('a mixture draws from the weighted sum of its states, beside other requests and in chunks', () => {
    const mixtures: readonly (readonly MixedState[])[] = [
      [
        { startState: 'poet', weight: 0.5 },
        { startState: null, weight: 0.5 },
      ],
      [
        { startState: null, weight: 0.2 },
        { startState: 'tale-2', weight: 0.5 },
        { startState: 'x.y_z', weight: 0.3 },
      ],
      [
        { startState: 'tale-2', weight: 1 },
        { startState: 'poet', weight: 0 },
      ],
    ]
    const prompt = someTokens(90, 8)
    for (const [i, mixture] of mixtures.entries()) {
      engine.submit(requestOf({ id: `m${i}`, prompt, maxTokens: 10, sampling: GREEDY, mixture }))
      const alone = { id: `a${i}`, prompt: someTokens(9, i), maxTokens: 12, sampling: GREEDY }
      engine.submit(requestOf({ ...alone, startState: 'poet' }))
    }
    const collected = drain(engine)
    for (const [i, mixture] of mixtures.entries()) {
      expect(collected.answer(`m${i}`)!.tokens).toEqual(greedyOfMixture(prompt, mixture, 10))
      expect(collected.answer(`a${i}`)!.tokens).toEqual(wanted('poet', someTokens(9, i), 12))
    }
    expect(engine.stats.freeSlots).toBe(engine.info.numSlots)
  })

  test('a mixture is refused where it makes no sense, and its slots are free after a cancel', () => {
    const mixture = [
      { startState: 'poet', weight: 1 },
      { startState: null, weight: 1 },
    ]
    const parts = { id: 'no', prompt: someTokens(9, 1), maxTokens: 4, sampling: GREEDY, mixture }
    expect(() => engine.submit(requestOf({ ...parts, n: 2 }))).toThrow('n must be 1')
    expect(() => engine.submit(requestOf({ ...parts, startState: 'poet' }))).toThrow('startState')
    expect(() => engine.submit(requestOf({ ...parts, promptLogprobs: 0 }))).toThrow('promptLogprobs')
    const wide = Array.from({ length: 9 }, () => ({ startState: null, weight: 1 }))
    expect(() => engine.submit(requestOf({ ...parts, mixture: wide }))).toThrow('9 states')
    const unknown = [{ startState: 'nobody', weight: 1 }, mixture[0]!]
    expect(() => engine.submit(requestOf({ ...parts, mixture: unknown }))).toThrow('no start state')
    engine.submit(requestOf({ ...parts, id: 'cut', maxTokens: 100 }))
    for (let i = 0; i < 3; i++) engine.step()
    engine.cancel('cut')
    drain(engine)
    expect(engine.stats.freeSlots).toBe(engine.info.numSlots)
  })

  test('names are listed last, and can follow an @', () => {
    const { startStates } = engine
    const state = states.get('poet')!
    expect(engine.info.startStates).toEqual(['poet', 'tale-2', 'x.y_z'])
    expect(() => startStates.add('poet', state)).toThrow('there is a start state "poet" already')
    for (const name of ['', ' a', 'a ', 'a@b', 'a\nb', 'x'.repeat(65)])
      expect(() => startStates.add(name, state)).toThrow('cannot name a start state')
  })
})
