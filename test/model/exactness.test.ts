import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ModelRunner } from '../../src/model/model-runner.ts'
import type { BatchRow } from '../../src/model/runner.ts'
import { ARCHITECTURES, BACKENDS, draw, someTokens, tinyRunner } from '../helpers/runner.ts'

/** Feeds tokens to a slot in chunks of the given sizes and returns the logits after the last token. */
function feed(runner: ModelRunner, slot: number, tokens: Int32Array, sizes: readonly number[]) {
  let logits = new Float32Array(0)
  let start = 0
  for (let i = 0; start < tokens.length; i++) {
    const chunk = tokens.subarray(start, start + sizes[i % sizes.length]!)
    start += chunk.length
    const isLast = start >= tokens.length
    // The last token goes alone, so that every way of feeding ends in the same question.
    if (isLast && chunk.length > 1) runner.step([{ slot, tokens: chunk.slice(0, -1), samples: [] }])
    const fed = isLast ? chunk.slice(-1) : chunk
    const [result] = runner.step([{ slot, tokens: fed, samples: [], allLogits: isLast }])
    if (isLast) logits = Float32Array.from(result!.logits!)
  }
  return logits
}

function solo(runner: ModelRunner, tokens: Int32Array) {
  runner.clearSlot(0)
  return feed(runner, 0, tokens, [tokens.length])
}

const CASES = ARCHITECTURES.flatMap((architecture) =>
  BACKENDS.map((backend) => [architecture, backend] as const),
)

describe.each(CASES)('exactness of %s on %s', (architecture, backend) => {
  let runner: ModelRunner
  beforeAll(() => {
    runner = tinyRunner(backend, { architecture })
  })
  afterAll(() => runner.dispose())

  test.each([1, 2, 15, 16, 17, 33, 64, 100])(
    'prefill of %i tokens: whole = chunks = one by one',
    (length) => {
      const tokens = someTokens(length, length)
      const whole = solo(runner, tokens)
      for (const sizes of [[1], [7], [16], [3, 1, 20]]) {
        runner.clearSlot(3)
        expect(feed(runner, 3, tokens, sizes)).toEqual(whole)
      }
      expect(whole.every(Number.isFinite)).toBe(true)
    },
  )

  // The reference takes minutes for these.
  test.skipIf(backend === 'reference').each([2050, 8192, 16_384])(
    'prefill of %i tokens: by 100 = one by one',
    (length) => {
      const tokens = someTokens(length, length)
      const [by100, alone] = [100, 1].map((size) => {
        runner.clearSlot(3)
        return feed(runner, 3, tokens, [size])
      })
      expect(alone).toEqual(by100)
      expect(by100!.every(Number.isFinite)).toBe(true)
    },
  )

  test.each([2, 7, 32])('alone = among %i rows that come and go', (size) => {
    const tokens = someTokens(24, 1)
    const wanted = solo(runner, tokens)
    const mine = size - 1
    runner.clearSlot(mine)
    for (let slot = 0; slot < mine; slot++) runner.clearSlot(slot)
    let logits: Float32Array = new Float32Array(0)
    for (const [t, token] of tokens.entries()) {
      const rows: BatchRow[] = []
      for (let slot = 0; slot < mine; slot++) {
        if ((slot + t) % 3 === 0) continue // this neighbour is away at this step
        if ((slot + t) % 11 === 0) runner.clearSlot(slot) // another request has taken its slot
        const length = 1 + ((slot + t) % 4)
        const row = { slot, tokens: someTokens(length, slot * 100 + t), samples: [draw(slot)] }
        rows.push(row)
      }
      rows.splice(t % (rows.length + 1), 0, {
        slot: mine,
        tokens: Int32Array.of(token),
        samples: [],
        allLogits: t === tokens.length - 1,
      })
      const results = runner.step(rows)
      const own = results[rows.findIndex((row) => row.slot === mine)]!
      if (own.logits) logits = own.logits
    }
    expect(logits).toEqual(wanted)
  })

  test('a copied slot goes on like the original, and apart from it', () => {
    const [start, end] = [someTokens(20, 5), someTokens(9, 6)]
    const wanted = solo(runner, Int32Array.of(...start, ...end))
    runner.clearSlot(1)
    runner.step([{ slot: 1, tokens: start, samples: [] }])
    runner.copySlot(1, 2)
    runner.step([{ slot: 1, tokens: someTokens(5, 9), samples: [] }])
    expect(feed(runner, 2, end, [4])).toEqual(wanted)
  })

  test('saved, restored and continued = never saved', () => {
    const [start, end] = [someTokens(20, 5), someTokens(9, 6)]
    const wanted = solo(runner, Int32Array.of(...start, ...end))
    runner.clearSlot(1)
    runner.step([{ slot: 1, tokens: start, samples: [] }])
    const saved = runner.readState(1)
    runner.poisonSlot(1)
    runner.writeState(4, saved)
    const logits = feed(runner, 4, end, [9])
    // The reference keeps its state in f64 and a snapshot is f32; the cpu backend is f32 throughout.
    if (backend === 'reference') expect(distance(logits, wanted)).toBeLessThan(1e-6)
    else expect(logits).toEqual(wanted)
    expect(runner.readState(4).wkv).not.toEqual(saved.wkv)
  })

  test('read some layers at a time, in any order, a state is the one that was read whole', () => {
    runner.clearSlot(1)
    runner.step([{ slot: 1, tokens: someTokens(20, 5), samples: [] }])
    const whole = runner.readState(1)
    const filled = (length: number) => new Float32Array(length).fill(7)
    const pieces = { shift: filled(whole.shift.length), wkv: filled(whole.wkv.length) }
    runner.readLayers(1, 1, 3, pieces)
    const first = whole.wkv.length / 3
    expect(pieces.wkv.subarray(0, first)).toEqual(filled(first))
    expect(pieces.wkv.subarray(first)).toEqual(whole.wkv.subarray(first))
    runner.readLayers(1, 0, 1, pieces)
    expect(pieces).toEqual(whole)
    expect(() => runner.readLayers(1, 2, 4, pieces)).toThrow()
  })

  test('written some layers at a time, in any order, a state is the one that was written whole', () => {
    runner.clearSlot(1)
    runner.step([{ slot: 1, tokens: someTokens(20, 5), samples: [] }])
    const whole = runner.readState(1)
    runner.clearSlot(2)
    runner.writeLayers(2, 1, 3, whole)
    const first = whole.wkv.length / 3
    const half = runner.readState(2)
    expect(half.wkv.subarray(0, first)).toEqual(new Float32Array(first))
    expect(half.wkv.subarray(first)).toEqual(whole.wkv.subarray(first))
    runner.writeLayers(2, 0, 1, whole)
    expect(runner.readState(2)).toEqual(whole)
    expect(() => runner.writeLayers(2, 2, 4, whole)).toThrow()
    expect(runner.readState(2)).toEqual(whole)
  })

  test('a state saved on one backend continues on the other', () => {
    const other = tinyRunner(backend === 'cpu' ? 'reference' : 'cpu', { architecture })
    const [start, end] = [someTokens(20, 5), someTokens(9, 6)]
    const wanted = solo(runner, Int32Array.of(...start, ...end))
    other.clearSlot(0)
    other.step([{ slot: 0, tokens: start, samples: [] }])
    runner.writeState(2, other.readState(0))
    expect(distance(feed(runner, 2, end, [9]), wanted)).toBeLessThan(1e-4)
    other.dispose()
  })

  test('a cleared slot has no memory of its last owner', () => {
    const tokens = someTokens(12, 3)
    const wanted = solo(runner, tokens)
    runner.poisonSlot(5)
    runner.clearSlot(5)
    expect(feed(runner, 5, tokens, [12])).toEqual(wanted)
  })

  test('a poisoned slot shows in the draw', () => {
    runner.poisonSlot(6)
    const [result] = runner.step([{ slot: 6, tokens: someTokens(2, 1), samples: [draw(6)] }])
    expect(result!.drawn[0]!.token).toBe(-1)
  })

  test('same seed and prompt, same draws, whatever else is in the batch', () => {
    const tokens = someTokens(10, 8)
    const answer = (slot: number, neighbours: number) => {
      runner.clearSlot(slot)
      runner.resetPenalties(slot, tokens)
      let next: Int32Array = tokens
      return Array.from({ length: 20 }, (_, position) => {
        const others = Array.from({ length: neighbours }, (_, i) => ({
          slot: 10 + i,
          tokens: someTokens(1, i + position),
          samples: [draw(10 + i, { seed: BigInt(i) })],
        }))
        const spec = draw(slot, { position, frequencyPenalty: 0.3, seed: 2n ** 63n + 5n })
        const results = runner.step([...others, { slot, tokens: next, samples: [spec] }])
        const { token } = results.at(-1)!.drawn[0]!
        next = Int32Array.of(token)
        return token
      })
    }
    for (let i = 0; i < 20; i++) runner.clearSlot(10 + i)
    const alone = answer(0, 0)
    expect(answer(1, 6)).toEqual(alone)
    expect(answer(2, 20)).toEqual(alone)
    expect(new Set(alone).size).toBeGreaterThan(5)
  })
})

test.each(ARCHITECTURES)('cpu logits of %s agree with the reference', (architecture) => {
  const tokens = someTokens(40, 12)
  const [reference, cpu] = [
    tinyRunner('reference', { architecture }),
    tinyRunner('cpu', { architecture }),
  ]
  expect(distance(solo(cpu, tokens), solo(reference, tokens))).toBeLessThan(1e-4)
  reference.dispose()
  cpu.dispose()
})

const QUANTS = ARCHITECTURES.flatMap((architecture) =>
  (['f16', 'bf16', 'int8', 'q4', 'nf4'] as const).map((quant) => ({ architecture, quant })),
)

test.each(QUANTS)(
  '$quant weights of $architecture on cpu agree with the same rounding on the reference',
  ({ architecture, quant }) => {
    const tokens = someTokens(40, 12)
    const [reference, cpu] = [
      tinyRunner('reference', { architecture, quant }),
      tinyRunner('cpu', { architecture, quant }),
    ]
    // Products of quantised weights on cpu round activations as well; the reference does not.
    expect(distance(solo(cpu, tokens), solo(reference, tokens))).toBeLessThan(
      ['int8', 'q4', 'nf4'].includes(quant) ? 3e-2 : 1e-4,
    )
    reference.dispose()
    cpu.dispose()
  },
)

/** Largest difference relative to the largest logit. */
function distance(a: Float32Array, b: Float32Array): number {
  const largest = b.reduce((max, value) => Math.max(max, Math.abs(value)), 0)
  return a.reduce((max, value, i) => Math.max(max, Math.abs(value - b[i]!)), 0) / largest
}
