import { expect, test } from 'vitest'
import { type CudaBackend, kernelsOf } from '../../../src/backend/cuda/cuda.ts'
import { CARDS, infoOf, simulated } from '../../../src/backend/cuda/driver/cards.ts'
import type { GemmCall } from '../../../src/backend/cuda/gemm/gemm.ts'
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

test('a card that is not present says which products the library would multiply, up to the largest step', () => {
  const products = new Map<string, GemmCall>()
  const build = (backend: CudaBackend) => {
    const model = loadRwkv7(shapesOnly('0.1b'), backend, {})
    new ModelRunner(model, backend, { numSlots: 48, maxTokens: 256, fingerprint: '' })
  }
  kernelsOf(infoOf(CARDS.h200), 'f32', build, { products })
  const sizesOf = (key: string) =>
    [...products.keys()].filter((one) => one.startsWith(`${key} n`)).map((one) => Number(/ n(\d+)/.exec(one)?.[1]))
  // The key matrix of the channel mix in every size that is not done by kernels for few tokens; the head for all slots.
  expect(sizesOf('3072x768')).toEqual([24, 32, 48, 64, 96, 128, 160, 192, 224, 256])
  expect(Math.max(...sizesOf('65536x768'))).toBe(48)
})

test('which kernels a card needs depends on whether copies of weights fit', () => {
  const hasActive = (memoryBytes?: number) => {
    const build = (backend: CudaBackend) => {
      const model = loadRwkv7(shapesOnly('7.2b'), backend, { weightType: 'i8' })
      new ModelRunner(model, backend, { numSlots: 8, maxTokens: 256, fingerprint: '' })
    }
    const options = memoryBytes === undefined ? {} : { memoryBytes }
    const kernels = kernelsOf(infoOf(CARDS.h200), 'f32', build, options)
    return new Set(kernels.flatMap(([file, { ACTIVE }]) => (file === 'few-rows' ? [ACTIVE] : [])))
  }
  expect(hasActive()).toEqual(new Set([1]))
  expect(hasActive(10e9)).toEqual(new Set([0]))
  expect(() => hasActive(5e9)).toThrow(/of device memory asked for/)
})

test.each(['i8', 'q4'] as const)(
  'the kernels of %s weights are known before the first step of any size',
  (weightType) => {
    const build = (backend: CudaBackend) => {
      const model = loadRwkv7(shapesOnly('7.2b'), backend, { weightType })
      new ModelRunner(model, backend, { numSlots: 64, maxTokens: 2048, fingerprint: '' })
    }
    const named = (options = {}) =>
      kernelsOf(infoOf(CARDS.h200), 'f32', build, options).map((one) => JSON.stringify(one))
    // Over all sizes of steps, as products are.
    expect(named()).toEqual(expect.arrayContaining(named({ products: new Map() })))
  },
)

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
