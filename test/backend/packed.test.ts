/** Products and tables of GGUF's blocks, compared with their values on the reference backend. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { PACKED_BLOCKS, packedRowBytes } from '../../src/backend/quantised.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { PackedType } from '../../src/backend/weight-types.ts'
import { type OddScales, packedSource } from '../helpers/packed-source.ts'
import {
  capacityFor,
  DEVICES,
  LEVELS,
  multiplied,
  normals,
  type Product,
  poisoned,
  raggedBatch,
  read,
  rmsRatio,
  runStep,
} from './kit.ts'

const reference = createReferenceBackend()
const TYPES = Object.keys(PACKED_BLOCKS) as PackedType[] // Object.keys loses the key type
/** What a software GPU computes in a commit: it compiles for seconds for each type. */
const FEW: readonly PackedType[] = ['Q8_0', 'Q4_K', 'Q6_K']

interface Case extends Product {
  readonly type: PackedType
  readonly scales?: OddScales
}

function multiply(backend: Backend, c: Case, x = inputs(c)): Promise<Float32Array> {
  return multiplied(backend, c, backend.matrix(packedSource(c.type, c.rows, c.columns, c.scales), c.type), x)
}

function inputs({ tokens, columns }: Case): Float32Array {
  return normals(tokens * columns, tokens + columns)
}

const known = new Map<string, Promise<Float32Array>>()

function expected(c: Case): Promise<Float32Array> {
  const key = JSON.stringify(c)
  const result = known.get(key) ?? multiply(reference, c)
  known.set(key, result)
  return result
}

/** Whole tiles and a partial one, one block of inputs and several. */
const SHAPES = [
  [64, 256],
  [1, 512],
  [201, 768],
] as const

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')
describe.each(DEVICES)('on $name', ({ name, isSlow, open }) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await open()
  })
  afterAll(() => tested.dispose())
  const isCpu = name.startsWith('cpu')
  // Activations of 16 bits on cpu; f16 weights elsewhere.
  const bound = isCpu ? 8e-5 : 1e-3

  describe.each(isSlow ? FEW : TYPES)('%s', (type) => {
    test.each(SHAPES)('%i×%i, few tokens and many', async (rows, columns) => {
      // If they become f16, linear.test.ts covers the numbers of tokens.
      for (const tokens of isSlow ? [1, 7] : [1, 2, 3, 4, 5, 7, 29, 35]) {
        const c = { type, rows, columns, tokens }
        expect(rmsRatio(await multiply(tested, c), await expected(c))).toBeLessThan(bound)
      }
    })

    test('a width of a single group of 32, and an epilogue', async () => {
      const columns = PACKED_BLOCKS[type].elements === 32 ? 96 : 256
      const c = { type, rows: 70, columns, tokens: 3, epilogue: 'add' } as const
      expect(rmsRatio(await multiply(tested, c), await expected(c))).toBeLessThan(bound)
    })

    test('a row is the same alone and among others', async () => {
      // Many tokens are multiplied with decoded tiles.
      const c = { type, rows: 130, columns: 512, tokens: isCpu ? 40 : 9 }
      const x = inputs(c)
      const all = await multiply(tested, c, x)
      for (const token of [0, 4, c.tokens - 1]) {
        const alone = await multiply(tested, { ...c, tokens: 1 }, x.slice(token * 512, token * 512 + 512))
        if (isCpu) expect(alone).toEqual(all.slice(token * 130, token * 130 + 130))
        else expect(rmsRatio(alone, all.slice(token * 130, token * 130 + 130))).toBeLessThan(1e-5)
      }
    })

    test('a NaN input reaches all outputs of its token', async () => {
      const c = { type, rows: 70, columns: 256, tokens: 3 }
      const x = inputs(c)
      x[256 + 40] = Number.NaN
      const y = await multiply(tested, c, x)
      expect(y.subarray(70, 140).every(Number.isNaN)).toBe(true)
      expect(y.subarray(0, 70).every(Number.isFinite)).toBe(true)
      expect(y.subarray(140).every(Number.isFinite)).toBe(true)
    })

    test('a NaN scale reaches the output of its row, for every token', async () => {
      for (const tokens of [1, 3, 9, ...(isCpu ? [40] : [])]) {
        const y = await multiply(tested, { type, rows: 70, columns: 512, tokens, scales: 'NaN' })
        const lost = y.map((value, i) => Number(Number.isNaN(value) !== (i % 70 === 2)))
        expect(lost.indexOf(1), `${tokens} tokens`).toBe(-1)
      }
    })

    test('scales may be negative', async () => {
      for (const tokens of [1, 3, 9, ...(isCpu ? [40] : [])]) {
        const c = { type, rows: 70, columns: 512, tokens, scales: 'negative' } as const
        expect(rmsRatio(await multiply(tested, c), await expected(c))).toBeLessThan(bound)
      }
    })

    test('a row of zeros gives zeros, or what its minimums give', async () => {
      const c = { type, rows: 70, columns: 256, tokens: 1 }
      const y = await multiply(tested, c, new Float32Array(256))
      expect(y.every((value) => value === 0)).toBe(true)
    })

    test('an embedding table', async () => {
      const [vocab, columns] = [50, 256]
      const capacity = capacityFor(3)
      const batch = raggedBatch(capacity, [3], [0], vocab)
      const [expectedX, x] = await Promise.all(
        [reference, tested].map(async (backend) => {
          const out = poisoned(backend, [5, columns])
          const table = backend.table(packedSource(type, vocab, columns))
          const norm = {
            weight: backend.tensor([columns], new Float32Array(columns).fill(1)),
            bias: backend.tensor([columns]),
            eps: 1e-5,
          }
          if (isCpu && backend === tested) expect(table.bytes).toBe(vocab * packedRowBytes(type, columns))
          await runStep(backend, capacity, batch, (ops) => ops.embed(out, table, norm))
          return read(backend, out, 0, 3 * columns)
        }),
      )
      expect(rmsRatio(x!, expectedX!)).toBeLessThan(1e-6)
    })
  })

  if (isCpu)
    test.each(TYPES)('%s takes the memory of the file plus at most 3 %%', (type) => {
      const { elements, bytes } = PACKED_BLOCKS[type]
      const matrix = tested.matrix(packedSource(type, 128, 256), type)
      const file = (128 * 256 * bytes) / elements
      expect(matrix.bytes).toBeGreaterThanOrEqual(file)
      expect(matrix.bytes).toBeLessThanOrEqual(1.03 * file)
    })

  if (isCpu)
    test('most inputs of a product are zero after relu²', async () => {
      const [hidden, rows] = [512, 130]
      const padded = new Float32Array(3 * 64)
      padded.set(normals(64, 3))
      const of = async (backend: Backend) => {
        const capacity = capacityFor(1)
        const [u, y] = [poisoned(backend, [3, hidden]), poisoned(backend, [3, rows])]
        const key = backend.matrix(packedSource('Q8_0', hidden, 64), 'Q8_0')
        const value = backend.matrix(packedSource('Q8_0', rows, hidden), 'Q8_0')
        const bias = backend.tensor([hidden], new Float32Array(hidden).fill(-1.5))
        await runStep(backend, capacity, raggedBatch(capacity, [1], [0], 1), (ops) => {
          ops.linear([{ y: u, x: backend.tensor([3, 64], padded), weight: key, bias, epilogue: 'relu2' }])
          ops.linear([{ y, x: u, weight: value }])
        })
        return { u: await read(backend, u, 0, hidden), y: await read(backend, y, 0, rows) }
      }
      const [got, wanted] = [await of(tested), await of(reference)]
      expect(wanted.u.filter((value) => value === 0).length).toBeGreaterThan(hidden / 2)
      expect(rmsRatio(got.y, wanted.y)).toBeLessThan(8e-5)
    })
})

test.each(LEVELS)('products on %s do not depend on the number of threads', async (isa) => {
  for (const type of ['Q8_0', 'Q6_K', 'Q4_K'] as const) {
    const results: Float32Array[][] = []
    for (const threads of [1, 2, 3]) {
      const backend = createCpuBackend({ isa, threads })
      const y = [1, 40].map((tokens) => multiply(backend, { type, rows: 300, columns: 256, tokens }))
      results.push(await Promise.all(y))
      backend.dispose()
    }
    expect(results[1]).toEqual(results[0])
    expect(results[2]).toEqual(results[0])
  }
})
