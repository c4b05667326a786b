import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import { planOf, planOfEight, type Way, wayFor } from '../../../src/backend/cuda/ops/fused-layers-plan.ts'
import type { Rwkv7Layer } from '../../../src/backend/cuda/ops/layer-pattern.ts'

const H200 = { numSms: 132, sharedBytes: 227 << 10 }
const RANKS = { w: 96, a: 96, g: 256, vGate: 64 }
/** Of 7.2B and 13.3B. */
const WIDE = { w: 128, a: 128, g: 480, vGate: 96 }

/** A chip and some layers; only the fields that a plan reads are set. */
function partsOf(
  channels: number,
  { numSms, sharedBytes }: typeof H200,
  ranks = RANKS,
  type: Rwkv7Layer['type'] = 'f16',
  numLayers = 2,
) {
  const matrices = { r: channels, k: channels, v: channels, ...ranks }
  const inner = new Map(Object.entries(matrices).map(([name, rows]) => [name, { weight: { rows } }]))
  const states = { shape: { channels, headSize: 64 }, wkvType: 'f32' }
  const layer = { type, inner, states, key: { rows: 4 * channels } } as unknown as Rwkv7Layer
  const device = { computeCapability: [9, 0], numSms, info: { sharedBytesPerBlock: sharedBytes } }
  return [device as unknown as CudaDevice, new Array<Rwkv7Layer>(numLayers).fill(layer)] as const
}

function plan(
  channels: number,
  chip: typeof H200,
  choose?: () => Way,
  ranks = RANKS,
  type: Rwkv7Layer['type'] = 'f16',
  tokens = 1,
  numLayers = 2,
  isTurned?: boolean,
) {
  return planOf(...partsOf(channels, chip, ranks, type, numLayers), choose, tokens, isTurned)
}

test('for one row of wide models a separate warp loads the weights', () => {
  expect([768, 1024, 2048, 4096].map(wayFor)).toEqual(['warps', 'warps', 'feed', 'feed'])
  expect(plan(1024, H200)).toMatchObject({ threads: 544, defines: { FEED: 0, RING: 5 } })
  expect(plan(2048, H200)).toMatchObject({ threads: 576, defines: { FEED: 1, STAGE_ROWS: 4 } })
  expect(plan(192, H200, () => 'feed')).toMatchObject({ defines: { FEED: 1, STAGE_ROWS: 40 } })
})

test.each([64, 192, 320, 768, 1024, 2048, 2560, 4096])('%i channels fit both ways of loading', (channels) => {
  for (const way of ['warps', 'feed'] as const)
    for (const tokens of [1, 2]) {
      const { defines, sharedBytes } = plan(channels, H200, () => way, RANKS, 'f16', tokens)!
      expect(defines).toMatchObject({ TOKENS: tokens, FEED: Number(way === 'feed') })
      expect(defines.FIXED % 128).toBe(0)
      expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
    }
})

test('narrow f16 models have words on Hopper, where a block has few rows of x but some', () => {
  const hasWords = (channels: number, numSms: number, capability: readonly [number, number]) => {
    const [device, layers] = partsOf(channels, { ...H200, numSms })
    const card = { ...device, computeCapability: capability } as unknown as CudaDevice
    const actives = [1, 2].map((tokens) => planOf(card, layers, undefined, tokens)!.defines.ACTIVE)
    expect(actives[1]).toBe(actives[0])
    return actives[0] === 0
  }
  expect([192, 768, 1024, 2048].map((channels) => hasWords(channels, 132, [9, 0]))).toEqual([true, true, true, false])
  expect(hasWords(768, 128, [8, 9])).toBe(false)
  // More blocks than channels, or more rows than a unit has.
  expect(hasWords(64, 132, [9, 0])).toBe(false)
  expect(hasWords(768, 40, [9, 0])).toBe(false)
})

test('two tokens have twice the space for inputs and sums', () => {
  const one = plan(2048, H200)!
  const two = plan(2048, H200, undefined, RANKS, 'f16', 2)!
  expect(two.defines).toMatchObject({ REGION: 2 * one.defines.REGION, LIST: one.defines.LIST })
  expect(two.defines.FIXED).toBeGreaterThan(one.defines.FIXED)
  for (const type of ['i8', 'q4', 'nf4', 'fp8'] as const)
    for (const isTurned of [true, false]) {
      const defines = plan(4096, H200, undefined, WIDE, type, 2, 32, isTurned)?.defines
      expect(defines, type).toMatchObject({ TOKENS: 2, ACTIVE: Number(isTurned) })
    }
  // Either the sums of two tokens have the order of one, or there is no plan for two.
  for (const kib of [64, 80, 99, 120, 163, 227]) {
    const chip = { numSms: 128, sharedBytes: kib << 10 }
    const [single, pair] = [1, 2].map((n) => plan(4096, chip, undefined, WIDE, 'f16', n))
    expect([undefined, single?.threads]).toContain(pair?.threads)
  }
})

test('three to eight tokens in f16 are one launch, where a block has room for three stages', () => {
  for (const [channels, ranks, numLayers, split, ring] of [
    [1024, RANKS, 24, 1, 6],
    [2048, RANKS, 24, 2, 6],
    [2560, { ...RANKS, g: 320 }, 32, 5, 12],
    [4096, WIDE, 32, 4, 6],
    [4096, WIDE, 61, 4, 5],
  ] as const) {
    const { defines, sharedBytes } = planOfEight(...partsOf(channels, H200, ranks, 'f16', numLayers))!
    expect(defines).toMatchObject({ TOKENS: 8, SPLIT: split, RING: ring })
    expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
    expect(planOfEight(...partsOf(channels, { ...H200, numSms: 55 }, ranks))).toBeNull()
  }
  expect(planOfEight(...partsOf(768, H200))).toBeNull()
  expect(planOfEight(...partsOf(4096, { ...H200, sharedBytes: 99 << 10 }, WIDE))).toBeNull()
  // A block would have 64 columns of ffn.value.
  expect(planOfEight(...partsOf(4096, { ...H200, numSms: 108 }, WIDE))).toBeNull()
})

test('three to eight tokens of quantised weights: a stage has 16 rows, or half of their columns where those are more than 44 KB', () => {
  for (const [channels, type, ranks, split, ring] of [
    [1024, 'q4', RANKS, 1, 6],
    [2048, 'i8', RANKS, 1, 5],
    [2560, 'i8', { ...RANKS, g: 320 }, 1, 4],
    [4096, 'i8', WIDE, 2, 5],
    [4096, 'q4', WIDE, 1, 5],
    [4096, 'fp8', WIDE, 2, 5],
    [4096, 'q6', WIDE, 2, 5],
  ] as const) {
    const { defines, sharedBytes, threads } = planOfEight(...partsOf(channels, H200, ranks, type, 32))!
    expect(defines).toMatchObject({ TOKENS: 8, FEED: 2, ROUNDED_SPLIT: split, RING: ring })
    expect(threads).toBe(608)
    expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
  }
  // Columns of ffn.value do not limit the number of blocks.
  expect(planOfEight(...partsOf(4096, { ...H200, numSms: 108 }, WIDE, 'i8'))).not.toBeNull()
  expect(planOfEight(...partsOf(768, H200, RANKS, 'i8'))).toBeNull()
})

test('blocks read as many bytes of r, k, v and the inner low ranks, which stay f16', () => {
  const rows = (type: Rwkv7Layer['type']) => plan(4096, H200, undefined, WIDE, type)!.defines
  expect(rows('f16')).toMatchObject({ IN_ROWS: 100, MIXES: 2 })
  // 12,288 rows of 4,352 bytes and 832 of 8,192, by 132.
  expect(rows('i8')).toMatchObject({ IN_ROWS: 105, IN_WEIGHT: 272, MIXES: 2 })
  expect(rows('q4')).toMatchObject({ IN_ROWS: 116, IN_WEIGHT: 144, MIXES: 2 })
})

test.each([
  ['RTX 3090', 82, 99],
  ['RTX 4090', 128, 99],
  ['RTX 5090', 170, 99],
  ['A100', 108, 163],
])('one row of wide models fits on an %s', (_, numSms, kib) => {
  const chip = { numSms, sharedBytes: kib << 10 }
  for (const type of ['f16', 'i8', 'q4', 'nf4', 'fp8'] as const)
    for (const [channels, ranks, numLayers] of [
      [2048, RANKS, 24],
      [2560, { ...RANKS, g: 320 }, 32],
      [4096, WIDE, 32],
      [4096, WIDE, 61],
    ] as const) {
      const { defines, sharedBytes } = plan(channels, chip, undefined, ranks, type, 1, numLayers)!
      expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(chip.sharedBytes)
      expect(defines.RING).toBeGreaterThanOrEqual(2)
    }
})

test('with little memory a stage has half a row, then only one stage is in flight; with less there is no plan', () => {
  const small = { numSms: 128, sharedBytes: 99 << 10 }
  expect(plan(4096, H200)).toMatchObject({ defines: { SPLIT: 1, RING: 6 } })
  expect(plan(4096, small)).toMatchObject({ defines: { FEED: 1, SPLIT: 2, RING: 4 } })
  const rounded = plan(4096, small, undefined, WIDE, 'i8', 1, 32)
  expect(rounded).toMatchObject({ defines: { ACTIVE: 0, SPLIT: 2, ROUNDED_ROWS: 4, RING: 2 } })
  // All of u takes more space than the listed part.
  const turned = plan(4096, small, undefined, WIDE, 'i8', 1, 32, true)
  expect(turned).toMatchObject({ defines: { ACTIVE: 1, SPLIT: 2, ROUNDED_ROWS: 4, RING: 3 } })
  expect(plan(2048, small)).toMatchObject({ defines: { FEED: 1, SPLIT: 1 } })
  expect(plan(4096, { ...small, sharedBytes: 48 << 10 })).toBeNull()
  expect(plan(1024, H200, undefined, { ...RANKS, w: 40 })).toBeNull()
})

test.each([
  ['i8', [256, 768, 1024, 2048, 2560, 4096], [64, 128, 192, 320]],
  ['q4', [256, 768, 1024, 2048, 2560, 4096], [128, 320, 896]],
  ['nf4', [512, 1024, 2048, 2560, 4096], [128, 256, 768]],
  ['fp8', [256, 768, 1024, 2048, 2560, 4096], [64, 192, 320]],
] as const)('%s is fed by two warps, in whole pairs of parts and 16 bytes of scales', (type, fitting, others) => {
  for (const channels of fitting) {
    const { defines, sharedBytes } = plan(channels, H200, () => 'warps', RANKS, type)!
    expect(defines).toMatchObject({ FEED: 2, QUANT: { i8: 1, q4: 2, nf4: 3, fp8: 4 }[type] })
    expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
  }
  for (const channels of others) expect(plan(channels, H200, undefined, RANKS, type)).toBeNull()
})
