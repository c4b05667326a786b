import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { bucketOf, planKey, productShape } from '../../../src/backend/cuda/gemm/gemm.ts'
import { KNOWN_DIR, type KnownPlans, knownPlans, PlanCache } from '../../../src/backend/cuda/gemm/plans.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-plans-'))
afterAll(() => rmSync(folder, { recursive: true }))

test('buckets hold their tokens, and from 128 on waste at most a fifth', () => {
  const sizes = [1, 2, 3, 5, 9, 17, 25, 33, 129, 320, 321, 337, 1024, 1025, 1536, 1537, 2048, 4097, 10_000]
  expect(sizes.map(bucketOf)).toEqual([
    ...[1, 2, 4, 8, 16, 24, 32, 48, 160, 320, 336, 352, 1024, 1152, 1536, 1664, 2048, 4224, 10_112],
  ])
  for (let n = 1; n < 20_000; n += 7) {
    expect(bucketOf(n)).toBeGreaterThanOrEqual(n)
    expect(bucketOf(n)).toBeLessThanOrEqual((n > 128 ? 1.25 : 2) * n)
    expect(bucketOf(bucketOf(n))).toBe(bucketOf(n))
  }
})

test('a plan is for one shape, type, layout and alignment', () => {
  const shape = { m: 512, n: 32, k: 256, outType: 'f16' } as const
  const strides = { w: 512 * 256, x: 0, y: 4096 }
  const keys = [
    planKey(productShape(shape, 256), 0),
    planKey(productShape(shape, 16), 0),
    planKey(productShape(shape, 256), 1),
    planKey(productShape({ ...shape, n: 48 }, 256), 0),
    planKey(productShape({ ...shape, outType: 'f32' }, 256), 0),
    planKey(productShape({ ...shape, ldy: 1024 }, 256), 0),
    planKey(productShape({ ...shape, batch: 3, strides }, 256), 0),
  ]
  expect(new Set(keys).size).toBe(keys.length)
  expect(keys[0]).toBe('512x256 n32 f16 b0 a256')
  expect(() => productShape({ ...shape, batch: 2 }, 256)).toThrow('needs strides')
})

test('the best plans are stored per machine, extended by several processes, and checked when read', () => {
  const machine = { gpu: 'H200', driver: '580.1', cublasLt: 130100 }
  const [one, two] = [new PlanCache(machine, folder), new PlanCache(machine, folder)]
  const algorithm = Uint8Array.from({ length: 64 }, (_, i) => i)
  expect(one.get('a')).toBeUndefined()
  expect(two.get('a')).toBeUndefined()
  one.set('a', { algorithm, microseconds: 3 })
  two.set('b', { algorithm, microseconds: 4 })
  const later = new PlanCache(machine, folder)
  expect(later.get('a')).toEqual(algorithm)
  expect(later.get('b')).toEqual(algorithm)
  expect(new PlanCache({ ...machine, driver: '580.2' }, folder).get('a')).toBeUndefined()

  const text = readFileSync(later.path, 'utf8')
  writeFileSync(later.path, text.slice(0, 40))
  expect(new PlanCache(machine, folder).get('a')).toBeUndefined()
  writeFileSync(later.path, '{"plans":{"a":{"algorithm":"AAAA","microseconds":1},"c":null}}')
  expect(new PlanCache(machine, folder).get('a')).toBeUndefined()
  expect(new PlanCache(machine, folder).get('c')).toBeUndefined()
})

test('plans that ship with Skein are used only for their card and version of the library', () => {
  const files = readdirSync(KNOWN_DIR)
  expect(files.length).toBeGreaterThan(0)
  for (const file of files) {
    const known = JSON.parse(readFileSync(join(KNOWN_DIR, file), 'utf8')) as KnownPlans
    const { gpus, cublasLt, plans } = known
    for (const gpu of gpus) {
      const found = knownPlans({ gpu, cublasLt })
      expect(found.size).toBe(Object.keys(plans).length)
      for (const [key, code] of found) {
        expect(key).toMatch(/^\d+x\d+ n\d+ f(16|32) b[01] a\d+/)
        expect(code.length).toBe(64)
      }
      expect(knownPlans({ gpu, cublasLt: cublasLt + 1 }).size).toBe(0)
      const cache = new PlanCache({ gpu, driver: 'any', cublasLt }, folder)
      const [key, code] = [...found][0]!
      expect(cache.get(key)).toEqual(code)
      // Plans tuned on this machine come first.
      const own = new Uint8Array(64).fill(7)
      cache.set(key, { algorithm: own, microseconds: 1 })
      expect(cache.get(key)).toEqual(own)
    }
  }
  expect(knownPlans({ gpu: 'another', cublasLt: 130100 }).size).toBe(0)
  // A damaged file costs tuning time, but nothing else.
  const damaged = mkdtempSync(join(folder, 'damaged-'))
  writeFileSync(join(damaged, 'half.json'), '{"gpus":["a"')
  expect(knownPlans({ gpu: 'a', cublasLt: 130100 }, damaged).size).toBe(0)
})
