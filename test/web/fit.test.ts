import { expect, test } from 'vitest'
import { fitOf, fitOn } from '../../web/src/lib/fit.ts'

const gpu = (index: number, used: number) => ({
  ...{ index, uuid: null, name: 'GPU', memory_total_mb: 16_000, memory_used_mb: used },
  ...{ utilisation: null, temperature_c: null, power_w: null },
})
const memory = { total_bytes: 32e9, available_bytes: 20e9 }

test('whether a model fits, is tight, or is too large depends on free and total memory', () => {
  expect(fitOf(10, 10, 20)).toBe('fits')
  expect(fitOf(11, 10, 20)).toBe('tight')
  expect(fitOf(19, 10, 20)).toBe('too large')
})

test('it refers to the GPU with most memory, or to the memory of the machine', () => {
  expect(fitOn(3e9, { memory, gpus: [gpu(0, 15_000), gpu(1, 0)] }, 20e9)).toEqual({ place: 'GPU 1', fit: 'fits' })
  expect(fitOn(3e9, { memory, gpus: [gpu(0, 15_000)] }, 20e9).fit).toBe('tight')
  expect(fitOn(20e9, { memory, gpus: [] }, 20e9)).toEqual({ place: 'RAM', fit: 'tight' })
})
