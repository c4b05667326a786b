import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { MatrixSource, QuantisedType, SourceType, WeightType } from '../../src/backend/weight-types.ts'
import {
  capacityFor,
  DEVICES,
  LEVELS,
  matrixOf,
  multiplied,
  normals,
  type Product,
  padded,
  poisoned,
  raggedBatch,
  randomSource,
  read,
  rmsRatio,
  runStep,
} from './kit.ts'

const reference = createReferenceBackend()
const known = new Map<string, Promise<Float32Array>>()

/** The result of the reference for a case, computed once for all devices. */
function expected(c: Case): Promise<Float32Array> {
  const key = JSON.stringify(c)
  const result = known.get(key) ?? multiply(reference, c)
  known.set(key, result)
  return result
}

interface Case extends Product {
  readonly type: WeightType
  readonly source?: SourceType
}

function multiply(backend: Backend, c: Case, x: Float32Array = inputs(c)): Promise<Float32Array> {
  const weight = matrixOf(backend, randomSource(c.rows, c.columns, c.source ?? 'f32', c.rows + c.columns), c.type)
  return multiplied(backend, c, weight, x)
}

function inputs({ tokens, columns }: Case): Float32Array {
  return normals(tokens * columns, tokens + columns)
}

/** The values of the kernels' 8-bit activations: per token and 32 inputs, scale = max|x| / 127. */
function quantised(x: Float32Array, columns: number): Float32Array {
  const out = new Float32Array(x.length)
  for (let row = 0; row < x.length; row += columns) {
    for (let at = row; at < row + columns; at += 32) {
      const group = x.subarray(at, Math.min(at + 32, row + columns))
      const largest = group.reduce((max, value) => Math.max(max, Math.abs(value)), 0)
      const inverse = Math.fround(127 / largest)
      for (const [i, value] of group.entries()) {
        const scaled = Math.fround(value * inverse)
        const nearest = Math.round(scaled)
        const q = nearest - scaled === 0.5 && nearest % 2 !== 0 ? nearest - 1 : nearest
        out[at + i] = q * Math.fround(largest / 127)
      }
    }
  }
  return out
}

/** The same with inputs rounded like in the kernels. */
function expectedOfRounded(c: Case): Promise<Float32Array> {
  const key = `rounded ${JSON.stringify(c)}`
  const result = known.get(key) ?? multiply(reference, c, quantised(inputs(c), c.columns))
  known.set(key, result)
  return result
}

const SHAPES = [
  [64, 64],
  [1, 1],
  [63, 33],
  [65, 31],
  [200, 127],
  [512, 256],
  [96, 1000],
] as const
const TYPES: readonly (readonly [WeightType, SourceType, number])[] = [
  ['f32', 'f32', 1e-5],
  ['f32', 'bf16', 1e-5],
  ['f16', 'f16', 2e-5],
  ['f16', 'f32', 2e-5],
  ['bf16', 'bf16', 2e-5],
  ['bf16', 'f32', 2e-5],
]

const ALL_TYPES = ['f32', 'f16', 'bf16', 'i8', 'q4', 'nf4'] as const

/** Allows for the rounding error; a single weight is all error or none. */
const QUANTISED: readonly (readonly [QuantisedType, SourceType, number])[] = [
  ['i8', 'f32', 2e-2],
  ['i8', 'bf16', 2e-2],
  ['q4', 'f32', 0.13],
  ['q4', 'bf16', 0.13],
  ['nf4', 'f32', 0.15],
  ['nf4', 'bf16', 0.15],
]

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(DEVICES)('linear on $name', (device) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await device.open()
  })
  afterAll(() => tested.dispose())

  test.each(TYPES)('%s weights from %s, all shapes', device.options, async (type, source, tolerance) => {
    for (const [rows, columns] of SHAPES) {
      for (const tokens of [1, 2, 3, 4, 5, 6, 7, 13, 70]) {
        const c = { rows, columns, type, source, tokens }
        expect(rmsRatio(await multiply(tested, c), await expected(c)), JSON.stringify(c)).toBeLessThan(tolerance)
      }
    }
  })

  test.each(QUANTISED)('%s weights from %s, all shapes', device.options, async (type, source, tolerance) => {
    for (const [rows, columns] of SHAPES) {
      for (const tokens of [1, 2, 5, 6, 7, 70]) {
        const c = { rows, columns, type, source, tokens }
        const y = await multiply(tested, c)
        const exact = await (device.roundsActivations ? expectedOfRounded(c) : expected(c))
        expect(rmsRatio(y, exact), JSON.stringify(c)).toBeLessThan(1e-5)
        const unquantised = await expected({ ...c, type: 'f32' })
        expect(rmsRatio(y, unquantised), JSON.stringify(c)).toBeLessThan(tolerance)
      }
    }
  })

  test.each(['tanh', 'sigmoid', 'relu2', 'add'] as const)('epilogue %s', device.options, async (epilogue) => {
    for (const type of ['f32', 'bf16'] as const) {
      for (const hasBias of [false, true]) {
        const c = { rows: 100, columns: 64, type, tokens: 7, epilogue, hasBias }
        expect(rmsRatio(await multiply(tested, c), await expected(c))).toBeLessThan(1e-5)
      }
    }
  })

  test.each(ALL_TYPES)(
    'a row of %s products has the same bits alone and in any batch, at any place',
    device.options,
    async (type) => {
      const [rows, columns] = [192, 320]
      const count = 512
      const x = normals(count * columns, 3)
      const c = { rows, columns, type, source: 'bf16' } as const
      const all = await multiply(tested, { ...c, tokens: count }, x)
      for (const [from, tokens] of [
        [0, 1],
        [count - 1, 1],
        [17, 1],
        [5, 2],
        [30, 7],
        [count - 33, 33],
      ] as const) {
        const part = x.slice(from * columns, (from + tokens) * columns)
        expect(await multiply(tested, { ...c, tokens }, part)).toEqual(all.slice(from * rows, (from + tokens) * rows))
      }
    },
  )

  test('several jobs at once, some sharing an input, each with its own type', async () => {
    const run = async (backend: Backend) => {
      const count = device.isSlow ? 2 : 9
      const room = count + 2
      const capacity = capacityFor(count)
      const x = backend.tensor([room, 96], normals(room * 96, 1))
      const z = backend.tensor([room, 64], normals(room * 64, 2))
      const jobs = (['i8', 'f16', 'q4', 'bf16', 'i8', 'nf4'] as const).map((type, i) => {
        const input = i === 4 ? z : x
        const rows = 64 * i + 10
        const weight = backend.matrix(randomSource(rows, input.shape[1]!, 'bf16', i), type)
        return { y: poisoned(backend, [room, rows]), x: input, weight }
      })
      await runStep(backend, capacity, raggedBatch(capacity, [count], [0], 1), (ops) => ops.linear(jobs))
      return Promise.all(jobs.map(({ y }) => read(backend, y, 0, count * y.shape[1]!)))
    }
    const expected = await run(reference)
    for (const [i, y] of (await run(tested)).entries()) expect(rmsRatio(y, expected[i]!), `job ${i}`).toBeLessThan(2e-2)
  })

  test.each(['i8', 'q4', 'nf4'] as const)(
    '%s: an input is rounded as it is when the product begins',
    device.options,
    async (type) => {
      const [rows, columns, count] = [130, 160, 3]
      const capacity = capacityFor(count)
      const room = count + 2
      /** y = W·(u + added), where u is a product just before. */
      const product = async (backend: Backend, added: number | null) => {
        const u = poisoned(backend, [room, columns])
        const y = poisoned(backend, [room, rows])
        const ones = backend.tensor([room, columns], new Float32Array(room * columns).fill(1))
        const more = backend.tensor([room, columns], new Float32Array(room * columns).fill(added ?? 0))
        const first = backend.matrix(randomSource(columns, 64, 'f32', 3), 'f32')
        const second = matrixOf(backend, randomSource(rows, columns, 'bf16', 5), type)
        await runStep(backend, capacity, raggedBatch(capacity, [count], [0], 1), (ops) => {
          ops.linear([{ y: u, x: backend.tensor([room, 64], normals(room * 64, 9)), weight: first }])
          if (added !== null) ops.gatedAdd(u, ones, more)
          ops.linear([{ y, x: u, weight: second }])
        })
        return await read(backend, y, 0, count * rows)
      }
      // The cpu backend rounds u along with the first product, unless another op is between.
      expect(await product(tested, 0)).toEqual(await product(tested, null))
      expect(rmsRatio(await product(tested, 3), await product(reference, 3))).toBeLessThan(2e-2)
    },
  )

  if (device.name.startsWith('cpu'))
    test('f32 weights that bf16 holds take the memory of bf16, with the same products', async () => {
      const [rows, columns] = [130, 96]
      const plain = randomSource(rows, columns, 'f32', 9)
      const cut = (start: number, end: number) => {
        const bits = new Uint32Array(plain.readRows(start, end).slice().buffer)
        return new Uint8Array(bits.map((value) => value & 0xffff0000).buffer)
      }
      const product = async (source: MatrixSource, tokens: number) => {
        const capacity = capacityFor(tokens)
        const weight = tested.matrix(source, 'f32')
        const y = poisoned(tested, [tokens + 2, rows])
        const x = padded(tested, normals(tokens * columns, 4), columns)
        await runStep(tested, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
          ops.linear([{ y, x, weight }]),
        )
        return { bytes: weight.bytes, y: await read(tested, y, 0, tokens * rows) }
      }
      // One value that bf16 does not hold, in a row of its own.
      const odd = (start: number, end: number) => {
        const bytes = cut(start, end)
        if (end === rows) bytes[bytes.length - 4] = 1
        return bytes
      }
      const all = (tokens: number) => (tokens - 1) * rows
      for (const tokens of [1, 30]) {
        const held = await product({ ...plain, readRows: cut }, tokens)
        const whole = await product({ ...plain, readRows: odd }, tokens)
        expect(held.bytes * 2).toBe(whole.bytes)
        const [found, wanted] = [held, whole].map(({ y }) => y.subarray(all(tokens), all(tokens) + rows - 1))
        // With tiles, products of bf16 are added in another order than those of f32.
        if (device.name === 'cpu amx') expect(rmsRatio(found!, wanted!)).toBeLessThan(1e-6)
        else expect(found).toEqual(wanted)
      }
    })

  describe('after relu², with mostly zero inputs', () => {
    const [hidden, rows, tokens] = [256, 130, 7]

    /** y = value·relu²(key·x) for one token, a pair, or all from `from` on. */
    async function channelMixing(type: WeightType, x: Float32Array, weight: MatrixSource) {
      const count = x.length / 64
      const capacity = capacityFor(count)
      const u = poisoned(tested, [count + 2, hidden])
      const y = poisoned(tested, [count + 2, rows])
      // The inputs are about 1, so nine in ten products are negative.
      const key = { ...randomSource(hidden, 64, 'f32', 3) }
      const shifted = { ...key, readRows: (start: number, end: number) => below(key, start, end) }
      await runStep(tested, capacity, raggedBatch(capacity, [count], [0], 1), (ops) => {
        const first = { y: u, x: padded(tested, x, 64), weight: tested.matrix(shifted, 'f32') }
        ops.linear([{ ...first, epilogue: 'relu2' as const }])
        ops.linear([{ y, x: u, weight: matrixOf(tested, weight, type) }])
      })
      return { u: await read(tested, u, 0, count * hidden), y: await read(tested, y, 0, count * rows) }
    }

    function below(source: MatrixSource, start: number, end: number): Uint8Array {
      const values = new Float32Array(source.readRows(start, end).buffer).map((w) => w - 0.019)
      return new Uint8Array(values.buffer)
    }

    const x = normals(tokens * 64, 11).map((value) => 1 + value / 2)

    test.each(ALL_TYPES)('skipping zeros changes no bit of %s products', device.options, async (type) => {
      const weight = randomSource(rows, hidden, 'bf16', 5)
      const all = await channelMixing(type, x, weight)
      const zeros = all.u.filter((value) => value === 0).length / all.u.length
      expect(zeros).toBeGreaterThan(0.8)
      expect(zeros).toBeLessThan(0.97)
      for (const [from, count] of [
        [0, 1],
        [3, 1],
        [2, 2],
        [5, 2],
      ] as const) {
        const part = await channelMixing(type, x.slice(from * 64, (from + count) * 64), weight)
        expect(part.y).toEqual(all.y.slice(from * rows, (from + count) * rows))
      }
    })

    test.each(['bf16', 'i8', 'q4'] as const)('NaN is not lost in %s products', device.options, async (type) => {
      const weight = randomSource(rows, hidden, 'f32', 5)
      const broken = x.slice(0, 64)
      broken[7] = Number.NaN
      const all = await channelMixing(type, broken, weight)
      expect(all.y.every(Number.isNaN)).toBe(true)
      const values = new Float32Array(weight.readRows(0, rows).buffer)
      values[3 * hidden + 200] = Number.NaN
      const readRows = (start: number, end: number) =>
        new Uint8Array(values.buffer, start * hidden * 4, (end - start) * hidden * 4)
      const { y } = await channelMixing(type, x.slice(0, 64), { ...weight, readRows })
      expect([...y.entries()].filter(([, value]) => Number.isNaN(value)).map(([i]) => i)).toEqual([3])
    })

    test('a token of zeros gives zeros', device.options, async () => {
      const { u, y } = await channelMixing('f16', new Float32Array(64), randomSource(rows, hidden, 'f16', 5))
      expect(u.every((value) => value === 0)).toBe(true)
      expect(y).toEqual(new Float32Array(rows))
    })
  })

  test('logits: products over the logit rows only', device.options, async () => {
    const run = async (backend: Backend) => {
      const capacity = { tokens: 8, rows: 1, logits: 5, samples: 0 }
      const batch = raggedBatch(capacity, [8], [0], 1)
      batch.numLogits = 3
      batch.logitRows.set([1, 4, 7])
      const weight = backend.matrix(randomSource(500, 64, 'f32', 1), 'f32')
      const y = poisoned(backend, [5, 500])
      const x = backend.tensor([5, 64], normals(5 * 64, 2))
      await runStep(backend, capacity, batch, (ops) => ops.logits(y, x, weight))
      return await read(backend, y)
    }
    const [y, expected] = [await run(tested), await run(reference)]
    expect(rmsRatio(y.subarray(0, 1500), expected.subarray(0, 1500))).toBeLessThan(1e-5)
    expect(y.subarray(1500).every(Number.isNaN)).toBe(true)
  })

  test.each(ALL_TYPES)('a NaN input is not lost in %s products', device.options, async (type) => {
    const c = { rows: 70, columns: 64, type, tokens: 7 }
    const x = inputs(c)
    x[64 + 40] = Number.NaN
    const y = await multiply(tested, c, x)
    expect(y.subarray(70, 140).every(Number.isNaN)).toBe(true)
    expect(y.subarray(0, 70).every(Number.isFinite)).toBe(true)
    expect(y.subarray(140).every(Number.isFinite)).toBe(true)
  })

  test('f16 refuses weights beyond its range', async () => {
    const values = new Float32Array(64 * 64).fill(1e6)
    const source = {
      name: 'big',
      rows: 64,
      columns: 64,
      dtype: 'f32',
      readRows: () => new Uint8Array(values.buffer),
    } as const
    expect(() => tested.matrix(source, 'f16')).toThrow(
      expect.objectContaining({
        code: 'unsupported_weights',
        message: expect.stringMatching(/big.*f16; use bf16 or f32/),
      }),
    )
  })
})

test.each(LEVELS)('products on %s do not depend on the number of threads', async (isa) => {
  for (const type of ['f16', 'bf16', 'i8', 'q4', 'nf4'] as const) {
    const results: Float32Array[][] = []
    for (const threads of [1, 2, 3]) {
      const backend = createCpuBackend({ isa, threads })
      const y = [1, 40].map((tokens) => multiply(backend, { rows: 300, columns: 96, type, tokens }))
      results.push(await Promise.all(y))
      backend.dispose()
    }
    expect(results[1]).toEqual(results[0])
    expect(results[2]).toEqual(results[0])
  }
})

test.each(LEVELS)('the largest numbers of q4 and of its inputs on %s: no sum of products overflows', async (isa) => {
  const backend = createCpuBackend({ isa, threads: 1 })
  const [rows, columns] = [70, 128]
  // The scale is 1 or −1: -8 is stored as 0 and 7 as 15, or the other way round.
  const values = Float32Array.from({ length: rows * columns }, (_, i) => (i % 32 === 0 ? -8 : 7))
  const bytes = new Uint8Array(values.map((value, i) => (i % (2 * columns) < columns ? value : -value)).buffer)
  const readRows = (start: number, end: number) => bytes.slice(4 * start * columns, 4 * end * columns)
  const weight = backend.matrix({ name: 'largest', rows, columns, dtype: 'f32', readRows }, 'q4')
  for (const tokens of [1, 2, 4, 17]) {
    const x = Float32Array.from({ length: tokens * columns }, (_, i) => (i % (2 * columns) < columns ? 1 : -1))
    const y = poisoned(backend, [tokens + 2, rows])
    await runStep(backend, capacityFor(tokens), raggedBatch(capacityFor(tokens), [tokens], [0], 1), (ops) =>
      ops.linear([{ y, x: padded(backend, x, columns), weight }]),
    )
    const sum = (columns / 32) * (31 * 7 - 8)
    const wanted = Float32Array.from({ length: tokens * rows }, (_, i) =>
      (Math.floor(i / rows) + (i % rows)) % 2 === 0 ? sum : -sum,
    )
    expect(rmsRatio(await read(backend, y, 0, tokens * rows), wanted)).toBeLessThan(1e-6)
  }
  backend.dispose()
})

// With tiles a token alone is multiplied by other instructions than several are.
test.each(LEVELS)(
  'a token has the same bits on %s among 1 to 70, in odd shapes and with numbers of any size',
  async (isa) => {
    const backend = createCpuBackend({ isa, threads: 2 })
    const most = 70
    const plain = normals(most * 130, 8)
    const wild = plain.map((value, i) => (i % 7 === 0 ? value * 2 ** ((i % 220) - 125) : i % 5 === 0 ? 0 : value))
    for (const [rows, columns] of [
      [1, 1],
      [65, 31],
      [200, 127],
      [200, 128],
      [300, 130],
    ] as const) {
      const c = { rows, columns, type: 'bf16', tokens: 1 } as const
      for (const x of [plain, wild]) {
        const token = (first: number, end: number) => x.slice(first * columns, end * columns)
        const alone: number[] = []
        for (let t = 0; t < most; t++) alone.push(...(await multiply(backend, c, token(t, t + 1))))
        for (const tokens of [2, 3, 15, 16, 17, 32, 33, 70]) {
          const first = most - tokens
          const found = await multiply(backend, { ...c, tokens }, token(first, most))
          expect(found).toEqual(Float32Array.from(alone.slice(first * rows)))
          if (x !== plain) continue
          const wanted = await multiply(reference, { ...c, tokens }, token(first, most))
          expect(rmsRatio(found, wanted)).toBeLessThan(2e-6)
        }
      }
    }
    backend.dispose()
  },
)
