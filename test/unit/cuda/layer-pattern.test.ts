import { expect, test } from 'vitest'
import { continues, type Rwkv7Layer } from '../../../src/backend/cuda/ops/layer-pattern.ts'

const [x, out, states] = [{}, {}, {}]
const RANKS = { r: 768, k: 768, v: 768, w: 64, a: 64, g: 128, vGate: 32 }
const outputs = new Map(Object.keys(RANKS).map((name) => [name, {}]))

/** A layer with only the fields that are compared. */
function layerOf(
  index: number,
  ranks: Partial<Record<keyof typeof RANKS, number>> = RANKS,
  others: object = {},
): Rwkv7Layer {
  const inner = new Map(Object.entries(ranks).map(([name, rows]) => [name, { y: outputs.get(name), weight: { rows } }]))
  const norms = [{ eps: 1e-5 }, { eps: 1e-5 }]
  const layer = { type: 'f16', index, inner, x, out, states, norms, key: { rows: 3072 }, ...others }
  return layer as unknown as Rwkv7Layer
}

const { vGate: _, ...firstRanks } = RANKS
const before = [layerOf(0, firstRanks), layerOf(1)]

test('identical layers are recognised as a pattern', () => {
  expect(continues([], before[0]!)).toBe(true)
  expect(continues(before.slice(0, 1), before[1]!)).toBe(true)
  expect(continues(before, layerOf(2))).toBe(true)
})

test.each([
  ['of another rank of the gate, which the first layer lacks', { ...RANKS, vGate: 64 }, {}],
  ['of another rank of w', { ...RANKS, w: 96 }, {}],
  ['without the gate', firstRanks, {}],
  ['of another type', RANKS, { type: 'i8' }],
  ['with another number of keys', RANKS, { key: { rows: 2048 } }],
  ['of other states', RANKS, { states: {} }],
  ['that is not the next', RANKS, { index: 3 }],
])('but not with %s', (_what, ranks, others) => {
  expect(continues(before, layerOf(2, ranks, others))).toBe(false)
})
