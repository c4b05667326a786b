import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import { planOf, type Way, wayFor } from '../../../src/backend/cuda/ops/fused-layers-plan.ts'
import type { Rwkv7Layer } from '../../../src/backend/cuda/ops/layer-pattern.ts'

const H200 = { numSms: 132, sharedBytes: 227 << 10 }
const RANKS = { w: 96, a: 96, g: 256, vGate: 64 }

/** The plan for two layers, of which only what it reads is there. */
function plan(
  channels: number,
  chip: typeof H200,
  choose?: () => Way,
  ranks = RANKS,
  type: Rwkv7Layer['type'] = 'f16',
  tokens = 1,
) {
  const matrices = { r: channels, k: channels, v: channels, ...ranks }
  const inner = new Map(
    Object.entries(matrices).map(([name, rows]) => [name, { weight: { rows } }]),
  )
  const states = { shape: { channels, headSize: 64 }, wkvType: 'f32' }
  const layer = { type, inner, states, key: { rows: 4 * channels } } as unknown as Rwkv7Layer
  const { numSms, sharedBytes } = chip
  const device = { computeCapability: [9, 0], numSms, info: { sharedBytesPerBlock: sharedBytes } }
  return planOf(device as unknown as CudaDevice, [layer, layer], choose, tokens)
}

test('one row of wide models is fed by a warp of its own', () => {
  expect([768, 1024, 2048, 4096].map(wayFor)).toEqual(['warps', 'warps', 'feed', 'feed'])
  expect(plan(1024, H200)).toMatchObject({ threads: 544, defines: { FEED: 0, RING: 5 } })
  expect(plan(2048, H200)).toMatchObject({ threads: 576, defines: { FEED: 1, STAGE_ROWS: 4 } })
  expect(plan(192, H200, () => 'feed')).toMatchObject({ defines: { FEED: 1, STAGE_ROWS: 40 } })
})

test.each([64, 192, 320, 768, 1024, 2048, 2560, 4096])('%i channels fit both ways', (channels) => {
  for (const way of ['warps', 'feed'] as const)
    for (const tokens of [1, 2]) {
      const { defines, sharedBytes } = plan(channels, H200, () => way, RANKS, 'f16', tokens)!
      expect(defines).toMatchObject({ TOKENS: tokens, FEED: Number(way === 'feed') })
      expect(defines.FIXED % 128).toBe(0)
      expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
    }
})

test('two rows have twice the room for inputs and sums; of integers there is one alone', () => {
  const one = plan(2048, H200)!
  const two = plan(2048, H200, undefined, RANKS, 'f16', 2)!
  expect(two.defines).toMatchObject({ REGION: 2 * one.defines.REGION, LIST: one.defines.LIST })
  expect(two.defines.FIXED).toBeGreaterThan(one.defines.FIXED)
  expect(plan(2048, H200, undefined, RANKS, 'i8', 2)).toBeNull()
  // Where two would have room in the other way alone, whose sums have another order.
  const chip = { numSms: 64, sharedBytes: 163 << 10 }
  const wide = { w: 128, a: 128, g: 480, vGate: 96 }
  expect(plan(4096, chip, undefined, wide)).toMatchObject({ threads: 576 })
  expect(plan(4096, chip, () => 'warps', wide, 'f16', 2)).toMatchObject({ threads: 544 })
  expect(plan(4096, chip, undefined, wide, 'f16', 2)).toBeNull()
})

test('where the feed has no room, each warp reads for itself, and without any room nothing is planned', () => {
  const small = { numSms: 128, sharedBytes: 99 << 10 }
  expect(plan(4096, small)).toMatchObject({ threads: 544, defines: { FEED: 0, RING: 2 } })
  expect(plan(2048, small)).toMatchObject({ defines: { FEED: 1 } })
  expect(plan(4096, { ...small, sharedBytes: 48 << 10 })).toBeNull()
  expect(plan(1024, H200, undefined, { ...RANKS, w: 40 })).toBeNull()
})

test.each([
  ['i8', [256, 768, 1024, 2048, 2560, 4096], [64, 128, 192, 320]],
  ['q4', [256, 768, 1024, 2048, 2560, 4096], [128, 320, 896]],
  ['nf4', [512, 1024, 2048, 2560, 4096], [128, 256, 768]],
] as const)(
  '%s is fed by two warps, in whole pairs of parts and 16 bytes of scales',
  (type, fitting, others) => {
    for (const channels of fitting) {
      const { defines, sharedBytes } = plan(channels, H200, () => 'warps', RANKS, type)!
      expect(defines).toMatchObject({ FEED: 2, QUANT: { i8: 1, q4: 2, nf4: 3 }[type] })
      expect(defines.FIXED + sharedBytes).toBeLessThanOrEqual(H200.sharedBytes)
    }
    for (const channels of others) expect(plan(channels, H200, undefined, RANKS, type)).toBeNull()
  },
)
