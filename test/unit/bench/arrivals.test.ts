import { expect, test } from 'vitest'
import { arrivalTimes } from '../../../src/bench/serve/bench.ts'
import { integerBetween, seededRandom, shuffled } from '../../../src/bench/serve/random.ts'

function gapsOf(times: readonly number[]): number[] {
  return times.slice(1).map((time, i) => time - times[i]!)
}

test.each([0.5, 4, 1000])('arrivals at %d a second are a Poisson process', (rate) => {
  const count = 20_000
  const times = arrivalTimes(count, rate, seededRandom(1))
  expect(times).toHaveLength(count)
  expect(times[0]).toBe(0)
  const gaps = gapsOf(times)
  const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length
  // The mean of 20 000 exponential gaps has a standard error of 0.7 %.
  expect(mean * rate).toBeGreaterThan(970)
  expect(mean * rate).toBeLessThan(1030)
  // An exponential distribution, not only its mean: e⁻¹ of the gaps are longer than the mean, e⁻³ longer than three
  // times.
  const longer = (factor: number) => gaps.filter((gap) => gap > factor * mean).length / gaps.length
  expect(longer(1)).toBeCloseTo(Math.exp(-1), 1)
  expect(longer(3)).toBeCloseTo(Math.exp(-3), 1)
  // Without memory: a gap says nothing about the next.
  const products = gaps.slice(1).map((gap, i) => (gap / mean - 1) * (gaps[i]! / mean - 1))
  expect(products.reduce((sum, product) => sum + product, 0) / products.length).toBeCloseTo(0, 1)
})

test('without a rate all requests are due at once', () => {
  expect(arrivalTimes(3, Number.POSITIVE_INFINITY, seededRandom(1))).toEqual([0, 0, 0])
})

test('the same seed gives the same arrivals, another seed different ones', () => {
  const of = (seed: number) => arrivalTimes(5, 2, seededRandom(seed))
  expect(of(7)).toEqual(of(7))
  expect(of(7)).not.toEqual(of(8))
})

test('whole numbers are drawn evenly, both ends included', () => {
  const random = seededRandom(3)
  const counts = [0, 0, 0, 0]
  for (let i = 0; i < 40_000; i++) counts[integerBetween(random, 2, 5) - 2]!++
  for (const count of counts) expect(Math.abs(count - 10_000)).toBeLessThan(400)
})

test('a shuffle keeps every value and moves some', () => {
  const values = Array.from({ length: 50 }, (_, i) => i)
  const mixed = shuffled(seededRandom(1), values)
  expect(mixed).not.toEqual(values)
  expect(mixed.toSorted((a, b) => a - b)).toEqual(values)
})
