import { expect, test } from 'vitest'
import { readSource } from '../../src/backend/webgpu/source.ts'

/** Of kernels that states are stepped by. */
const CONSTANTS = {
  N: 64,
  N4: 16,
  N8: 8,
  PARTS: 4,
  EACH: 4,
  PAIRS: 2,
  EACH_ROWS: 2,
  ONES: 0,
  TWOS: 1,
  ROWS4: 4,
  VECTORS: 5,
  LOADS: 4,
  VALUES: 1,
}
const KEPTS = [{ KEPT: 'kept-none' }, { KEPT: 'kept-halves' }, { KEPT: 'kept-bytes' }]
const STATES = [{ STATE: 'wkv-state' }, { STATE: 'wkv-state-f16' }]
const PARTS = [{ ROW_PARTS: 'row-parts' }, { ROW_PARTS: 'row-parts-quads' }, { ROW_PARTS: 'row-parts-eights' }]
const ORDERS = [{ ORDER: 'dots-i8-order' }, { ORDER: 'dots-q4-order' }]

const INPUTS = [{ INPUTS: 'dots-ahead' }, { INPUTS: 'dots-shared' }]
const WEIGHTS = [
  { WEIGHTS: 'dots-q4', ORDER: 'dots-q4-order' },
  { WEIGHTS: 'dots-i8', ORDER: 'dots-i8-order' },
]
const BESIDES = [
  { BESIDE: 'beside-none' },
  { BESIDE: 'beside-one', PAIRS: 'pairs-bf16' },
  { BESIDE: 'beside-one', PAIRS: 'pairs-f16' },
]

/** Of products by matrices. */
const TILES = {
  ...{ LANES: 32, PADDED: 512, SIDE: 16, TEAMS: 4, HIGH: 1, BROAD: 1, DOWN: 1, ACROSS: 2, STEP: 2 },
  ...{ BUFFERS: 1, LEFTS: 1, SETS: 2, PIECE: 1, WEIGHTS_EACH: 4, OTHERS_EACH: 4, SUMS_EACH: 1 },
}
const FLOATS = [
  { WEIGHTS: 'weights-bf16', HALVES: 'halves-floats' },
  { WEIGHTS: 'weights-f16', HALVES: 'halves-f16' },
]
const INTEGERS = [
  { WEIGHTS: 'weights-i8', HALVES: 'halves-i8' },
  { WEIGHTS: 'weights-q4', HALVES: 'halves-q4' },
]
const STEPS = [
  { STEPS_OF: 'matrix-steps', BESIDE: 'beside-none' },
  { STEPS_OF: 'matrix-steps-ahead', BESIDE: 'beside-none' },
]
const STEPS_BESIDE = [
  { STEPS_OF: 'matrix-steps-beside', BESIDE: 'matrix-beside', PAIRS: 'pairs-bf16' },
  { STEPS_OF: 'matrix-steps-beside', BESIDE: 'matrix-beside', PAIRS: 'pairs-f16' },
]

/** All that a file may be put together with: whatever names one part has, another must not have. */
test('no kernel declares a name twice, whatever parts it is made of', () => {
  for (const file of ['wkv7', 'wkv7-rows', 'wkv7-scan', 'wkv6'])
    for (const files of product(KEPTS, STATES, PARTS, ORDERS)) {
      const source = readSource(file, files, { ...CONSTANTS, OUTPUTS: 1, KEPT_FOURS: 64 })
      expectNamesOnce(source, `${file} of ${Object.values(files)}`)
    }
  const dots = { NT: 1, R: 2, TURNS: 2, EACH: 2, LOADS: 1, TOGETHER: 4, UNITS_BESIDE: 8, LOADS_BESIDE: 2 }
  for (const files of product(KEPTS, WEIGHTS, INPUTS, BESIDES)) {
    const all = { OPERANDS: 'linear-vectors', ...files }
    expectNamesOnce(readSource('linear-dots', all, { ...dots, OUTPUTS: 1, KEPT_FOURS: 8 }), Object.values(files).join())
  }
  const tiles = [...product([...FLOATS, ...INTEGERS], STEPS), ...product(INTEGERS, STEPS_BESIDE)]
  for (const files of product(tiles, [KEPTS[0]!, KEPTS[1]!])) {
    const all = { OPERANDS: 'linear-vectors', SIZE: 'subgroup-any', ...files }
    expectNamesOnce(readSource('linear-matrix', all, TILES), Object.values(files).join())
  }
})

function expectNamesOnce(source: string, what: string): void {
  const names = [...source.matchAll(/^(?:const|fn|struct|(?:@\S+ )*var<[^>]*>) ?(\w+)/gm)].map(([, name]) => name!)
  const twice = names.filter((name, i) => names.indexOf(name) !== i)
  expect(names.length).toBeGreaterThan(20)
  expect(twice, what).toEqual([])
}

type Files = Readonly<Record<string, string>>

function product(...lists: readonly (readonly Files[])[]): Files[] {
  return lists.reduce<Files[]>((all, list) => all.flatMap((one) => list.map((other) => ({ ...one, ...other }))), [{}])
}
