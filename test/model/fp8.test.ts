import { expect, test } from 'vitest'
import { LEVELS } from '../backend/kit.ts'
import { BACKENDS, tinyRunner } from '../helpers/runner.ts'

const devices = BACKENDS.filter((device) => device === 'reference' || LEVELS.length > 0)

test.each(devices)('--quant fp8 is refused on %s, with a hint', (device) => {
  expect(() => tinyRunner(device, { quant: 'fp8' })).toThrow(/needs an NVIDIA GPU.*--device cuda/)
})
