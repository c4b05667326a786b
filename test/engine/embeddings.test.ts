/**
 * Final hidden states as embeddings: of a prompt alone and among others, read whole and in chunks, on every backend.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest, Pooling } from '../../src/engine/messages.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { Runner } from '../../src/model/runner.ts'
import { BACKENDS, someTokens, tinyRunner } from '../helpers/runner.ts'
import { type Collected, drain, engineOver, LOOPS, requestOf } from './kit.ts'

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7)) }
const POOLINGS: readonly Pooling[] = ['last', 'mean']

function asking(id: string, prompt: Int32Array, embedding: Pooling): GenerateRequest {
  return requestOf({ id, prompt, embedding, maxTokens: 0, cache: 'no-store' })
}

function embeddingOf(collected: Collected, id: string): Float32Array {
  const events = collected.of(id)
  expect(events.map(({ type }) => type)).toEqual(['prompt', 'finish'])
  const [event] = events
  return event?.type === 'prompt' ? event.embedding! : new Float32Array(0)
}

/** Token by token, directly with the runner: [tokens][C] */
function hiddenOf(runner: Runner, tokens: Int32Array): Float32Array[] {
  runner.clearSlot(0)
  return [...tokens].map((token) => {
    const row = { slot: 0, tokens: Int32Array.of(token), samples: [], hidden: 'last' } as const
    return Float32Array.from(runner.step([row])[0]!.hidden!)
  })
}

/** Computed by definition. */
function pooled(states: readonly Float32Array[], pooling: Pooling): Float32Array {
  if (pooling === 'last') return states.at(-1)!
  return states[0]!.map((_, i) => states.reduce((sum, state) => sum + state[i]!, 0) / states.length)
}

describe.each(BACKENDS)('on %s', (backend) => {
  let runner: ModelRunner
  beforeAll(() => {
    runner = tinyRunner(backend, { slots: 9, maxTokens: 48 })
  })
  afterAll(() => runner.dispose())

  test('all tokens of a row at once equal one by one, beside draws and logits', () => {
    const tokens = someTokens(9, 4)
    const states = hiddenOf(runner, tokens)
    const all = states.flatMap((state) => [...state])
    runner.clearSlot(1)
    const rows = [
      { slot: 0, tokens: someTokens(3, 1), samples: [], allLogits: true },
      { slot: 1, tokens, samples: [], hidden: 'all' },
    ] as const
    const [scored, read] = runner.step(rows)
    expect([...read!.hidden!]).toEqual(all)
    expect(read!.logits).toBeUndefined()
    expect(scored!.hidden).toBeUndefined()
    runner.clearSlot(2)
    const [one] = runner.step([{ slot: 2, tokens, samples: [], hidden: 'last', allLogits: true }])
    expect(one!.hidden).toEqual(states.at(-1))
    expect(one!.logits).toHaveLength(9 * runner.info.vocabSize)
  })

  test.each(backend === 'cpu' ? LOOPS : (['plain'] as const))('%s: alone = among answers = by definition', (loop) => {
    const own = tinyRunner(backend, { slots: 9, maxTokens: 48 })
    // Comparing both ways on one runner would need two engines; the tiny model is loaded twice instead.
    const limits = { poisonFreedSlots: true, prefillChunk: 13 }
    const engine: Engine = engineOver(own, limits, null, loop, tokenBytes)
    // The reference is slow.
    const lengths = backend === 'cpu' ? [1, 5, 40, 90] : [1, 14]
    const asked = lengths.flatMap((length) =>
      POOLINGS.map((pooling) => {
        const tokens = someTokens(length, length)
        return { id: `${pooling}-${length}`, tokens, pooling }
      }),
    )
    const answers = Array.from({ length: 3 }, (_, i) =>
      requestOf({ id: `r${i}`, prompt: someTokens(6 + i, i), maxTokens: 6 }),
    )
    for (const request of answers) engine.submit(request)
    for (const { id, tokens, pooling } of asked) engine.submit(asking(id, tokens, pooling))
    const together = drain(engine)
    for (const { id, tokens, pooling } of asked) {
      engine.submit(asking(id, tokens, pooling))
      const alone = embeddingOf(drain(engine), id)
      expect(embeddingOf(together, id), id).toEqual(alone)
      expect(alone, id).toEqual(pooled(hiddenOf(runner, tokens), pooling))
    }
    engine.dispose()
  })
})

test('the reference and the CPU agree', () => {
  const tokens = someTokens(20, 9)
  const [reference, cpu] = BACKENDS.map((backend) => {
    const runner = tinyRunner(backend, { slots: 1 })
    const states = hiddenOf(runner, tokens)
    runner.dispose()
    return states
  })
  for (const pooling of POOLINGS) {
    const [wanted, got] = [pooled(reference!, pooling), pooled(cpu!, pooling)]
    const worst = Math.max(...wanted.map((value, i) => Math.abs(value - got[i]!)))
    expect(worst).toBeLessThan(1e-3)
    expect(wanted.some((value) => Math.abs(value) > 0.1)).toBe(true)
  }
})

test('options that do not apply to embeddings are refused', () => {
  const runner = tinyRunner('cpu', { slots: 2 })
  const engine = engineOver(runner, {}, null, 'plain', tokenBytes)
  const fine = asking('a', someTokens(4, 1), 'mean')
  for (const wrong of [{ maxTokens: 1 }, { n: 2 }, { promptLogprobs: 0 }, { cache: 'use' }] as const)
    expect(() => engine.submit({ ...fine, ...wrong })).toThrow(/embedding/)
  engine.submit(fine)
  expect(embeddingOf(drain(engine), 'a')).toHaveLength(128)
  engine.dispose()
})
