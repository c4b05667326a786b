import { expect, test } from 'vitest'
import { kernelsOf } from '../../../src/backend/cuda/cuda.ts'
import { CARDS, infoOf, simulated } from '../../../src/backend/cuda/driver/cards.ts'
import { targetOf } from '../../../src/backend/cuda/kernel/cuda-target.ts'
import { shapesOnly } from '../../../src/bench/random-model.ts'
import { ModelRunner } from '../../../src/model/run/model-runner.ts'
import { loadRwkv7 } from '../../../src/model/rwkv7.ts'

const H200 = { ...infoOf(CARDS.h200), isSimulated: false }

test('a simulated card has its own limits, but never more than the local one', () => {
  expect(simulated(H200, '')).toBe(H200)
  expect(simulated(H200, '4090')).toMatchObject({
    name: 'NVIDIA H200 as NVIDIA GeForce RTX 4090',
    computeCapability: [8, 9],
    numSms: 128,
    sharedBytesPerBlock: 99 << 10,
    totalBytes: 24 * 2 ** 30,
    isSimulated: true,
  })
  // The local GPU lacks multiprocessors of that card; its code is what every chip since the local one runs.
  const newer = { computeCapability: [12, 0], codeCapability: [9, 0], numSms: 132, isSimulated: true }
  expect(simulated(H200, '5090')).toMatchObject(newer)
  expect(targetOf(simulated({ ...H200 }, '5090'), [80, 90, 120])).toEqual({ name: 'compute_90', kind: 'ptx' })
  expect(targetOf(simulated(H200, 'a100'), [80, 90])).toEqual({ name: 'compute_80', kind: 'ptx' })
  expect(targetOf(simulated(H200, 'h100'), [80, 90])).toEqual({ name: 'sm_90a', kind: 'cubin' })
  expect(() => simulated(H200, '4099')).toThrow(/SKEIN_SIMULATE_CARD takes .*4090, .*, not 4099/)
})

test('a card that is not present says which kernels a model would need, whatever its memory', () => {
  const filesOn = (name: keyof typeof CARDS, size: '0.1b' | '7.2b') => {
    const kernels = kernelsOf(infoOf(CARDS[name]), 'f32', (backend) => {
      const model = loadRwkv7(shapesOnly(size), backend, {})
      new ModelRunner(model, backend, { numSlots: 8, maxTokens: 256, fingerprint: '' })
    })
    return kernels.map(([file]) => file)
  }
  const hopper = filesOn('h200', '0.1b')
  for (const file of ['convert', 'embed', 'few-rows', 'low-rank', 'sample', 'wkv7-chunk'])
    expect(hopper).toContain(file)
  const turing = filesOn('2080ti', '7.2b')
  expect(turing).toContain('wkv7')
  for (const file of ['few-rows', 'low-rank', 'wkv7-chunk']) expect(turing).not.toContain(file)
})

test('a card that is not present reads no packed weights', () => {
  const readRows = () => {
    throw new Error('read')
  }
  const packed = { type: 'Q6_K', readRows } as const
  const source = { name: 'w', rows: 64, columns: 512, dtype: 'f32', readRows, packed } as const
  const kernels = kernelsOf(infoOf(CARDS.h200), 'f32', (backend) => {
    expect(backend.matrix(source, 'Q6_K').bytes).toBe((64 * 512 * 7) / 8)
    expect(backend.table(source).bytes).toBe(64 * 2 * 210)
  })
  expect(kernels).toEqual([['lay-out-blocks', { QUANT: 7, BLOCK: 8 }]])
})
