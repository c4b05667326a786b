import { afterEach, expect, test, vi } from 'vitest'
import type { Backend, Epilogue, Matrix, MatrixSource } from '../../src/backend/backend.ts'
import type { CudaBackend } from '../../src/backend/cuda/cuda.ts'
import { Gemm } from '../../src/backend/cuda/gemm.ts'
import { quantiseRows } from '../../src/backend/reference/quantise.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import {
  capacityFor,
  normals,
  raggedBatch,
  randomSource,
  rmsRatio,
  runOnce,
} from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { compare, halves, poisonedHalves } from './ops-kit.ts'

const TYPES = ['i8', 'q4', 'nf4'] as const

/** rows × columns of W: widths of the released models, and such as fill neither runs nor groups. */
const MATRICES = [
  [8, 32],
  [64, 768],
  [480, 768],
  [1024, 96],
  [264, 544],
  [1032, 1024],
  [72, 8192],
] as const
const EPILOGUES: readonly Epilogue[] = ['none', 'tanh', 'sigmoid', 'relu2', 'add', 'add', 'none']
/** Up to so many tokens nothing beyond the batch is written; with tiles (capability 9.0) up to more, where W is of integers. */
const EXACT_TOKENS = 32
const TILED_TOKENS = 4096

/** The jobs of one linear, all over inputs of their own. `matrixOf` may choose per job. */
function jobsOf(
  backend: Backend,
  tokens: number,
  matrixOf: (source: MatrixSource, j: number) => Matrix,
) {
  return MATRICES.map(([rows, columns], j) => {
    const epilogue = EPILOGUES[j]!
    const isAdded = epilogue === 'add'
    const values = halves((tokens + 2) * rows, 60 + j).fill(Number.NaN, isAdded ? tokens * rows : 0)
    // The residual is f32 as in a model; once also f16.
    const y =
      j === 4
        ? backend.tensor([tokens + 2, rows], values)
        : backend.activation([tokens + 2, rows], values)
    const count = (tokens + 2) * columns
    const x = backend.activation([tokens + 2, columns], halves(count, 30 + j, 1.5))
    const weight = matrixOf(randomSource(rows, columns, 'bf16', 40 + j), j)
    const bias = isAdded ? {} : { bias: backend.tensor([rows], normals(rows, 50 + j)) }
    return { y, x, weight, epilogue, ...bias }
  })
}

function linearOf(
  backend: Backend,
  tokens: number,
  matrixOf: (source: MatrixSource, j: number) => Matrix,
): Float32Array[] {
  const capacity = capacityFor(tokens)
  const jobs = jobsOf(backend, tokens, matrixOf)
  const batch = raggedBatch(capacity, [tokens], [0], 1)
  runOnce(backend, capacity, batch, (ops) => ops.linear(jobs))
  return jobs.map(({ y, weight: { rows, type } }) => {
    if (tokens <= (isTiled(backend) && type !== 'f16' ? TILED_TOKENS : EXACT_TOKENS))
      expect(backend.readTensor(y, tokens * rows).every(Number.isNaN)).toBe(true)
    return backend.readTensor(y, 0, tokens * rows)
  })
}

function isTiled(backend: Backend): boolean {
  return 'device' in backend && (backend as CudaBackend).device.computeCapability[0] === 9
}

/** The numbers of a source. */
function valuesOf({ rows, readRows }: MatrixSource): Float32Array {
  const bytes = readRows(0, rows)
  const words = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2)
  return new Float32Array(Uint32Array.from(words, (bits) => bits << 16).buffer)
}

/** The same matrix as a file holds it rounded. */
function roundedSource(source: MatrixSource, type: (typeof TYPES)[number]): MatrixSource {
  const values = valuesOf(source)
  const readRows = (start: number, end: number) =>
    quantiseRows(
      type,
      values.subarray(start * source.columns, end * source.columns),
      source.columns,
    )
  return { ...source, quantised: { type, readRows } }
}

describeCuda('products with integers on cuda', () => {
  const cuda = backendOfGroup()

  test.each(
    TYPES.flatMap((type) =>
      [1, 3, 9, 32, 33, 65, 100, 150, 300, 1100].map((tokens) => [type, tokens] as const),
    ),
  )('linear with %s of %i tokens', (type, tokens) => {
    compare(cuda(), 1e-3, `T ${tokens}`, (backend) =>
      // Factors of low rank stay in f16 beside them.
      linearOf(backend, tokens, (source, j) => backend.matrix(source, j === 2 ? 'bf16' : type)),
    )
  })

  afterEach(() => void vi.restoreAllMocks())

  // Every size of a tile: 64, 128 and 256 tokens are the best for these where one cluster at a time fits (rounded.test.ts).
  test.each(
    TYPES.flatMap((type) =>
      [40, 120, 250, 500].flatMap((tokens) =>
        [1, 2, 4].map((shares) => [type, tokens, shares] as const),
      ),
    ),
  )(
    'linear with %s of %i tokens whose columns %i pairs of blocks share',
    (type, tokens, shares) => {
      vi.spyOn(cuda().device, 'clustersAtOnce').mockImplementation((_, __, ___, cluster) =>
        cluster === 2 * shares ? 1 : 0,
      )
      compare(cuda(), 1e-3, `T ${tokens}`, (backend) => {
        const capacity = capacityFor(tokens)
        const jobs = [264, 520].map((rows, j) => {
          const isAdded = j === 1
          const count = (tokens + 2) * rows
          const y = isAdded
            ? backend.tensor([tokens + 2, rows], normals(count, 3))
            : poisonedHalves(backend, [tokens + 2, rows])
          const x = backend.activation([tokens + 2, 2080], halves((tokens + 2) * 2080, 4 + j))
          const weight = backend.matrix(randomSource(rows, 2080, 'bf16', 6 + j), type)
          return { y, x, weight, epilogue: isAdded ? ('add' as const) : ('relu2' as const) }
        })
        const batch = raggedBatch(capacity, [tokens], [0], 1)
        runOnce(backend, capacity, batch, (ops) => ops.linear(jobs))
        return jobs.map(({ y, weight: { rows } }) => backend.readTensor(y, 0, tokens * rows))
      })
    },
  )

  test.each(TYPES)('%s from a file that holds it = rounded at load', (type) => {
    for (const tokens of [1, 70, 130, 1100]) {
      const fromFile = linearOf(cuda(), tokens, (source) =>
        cuda().matrix(roundedSource(source, type), type),
      )
      expect(fromFile).toEqual(linearOf(cuda(), tokens, (source) => cuda().matrix(source, type)))
    }
  })

  test.each(TYPES)('%s: a token among up to 32 has the sums it has alone', (type) => {
    const [C, rows] = [2048, 512]
    const weight = cuda().matrix(randomSource(rows, C, 'bf16', 1), type)
    const inputs = halves(32 * C, 2)
    const first = (tokens: number) => {
      const x = cuda().activation([tokens, C], inputs.slice(0, tokens * C))
      const y = cuda().activation([tokens, rows])
      const capacity = { ...capacityFor(tokens), tokens }
      runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
        ops.linear([{ y, x, weight }]),
      )
      return cuda().readTensor(y, 0, rows)
    }
    const alone = first(1)
    for (const tokens of [2, 8, 9, 20, 32]) expect(first(tokens), `${tokens}`).toEqual(alone)
  })

  test.each(TYPES)('%s: a weight that is no number fails its row only', (type) => {
    const [C, rows] = [128, 64]
    const values = normals(rows * C, 1)
    values[5 * C + 70] = Number.NaN
    const source = {
      ...{ name: 'with a NaN', rows, columns: C, dtype: 'f32' as const },
      readRows: (start: number, end: number) =>
        new Uint8Array(values.buffer, 4 * start * C, 4 * (end - start) * C),
    }
    for (const tokens of [1, 70, 130, 1100]) {
      const capacity = capacityFor(tokens)
      const x = cuda().activation([tokens + 2, C], halves((tokens + 2) * C, 2))
      const y = poisonedHalves(cuda(), [tokens + 2, rows])
      const weight = cuda().matrix(source, type)
      runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
        ops.linear([{ y, x, weight }]),
      )
      const found = cuda().readTensor(y, 0, tokens * rows)
      expect(found.every((value, i) => Number.isNaN(value) === (i % rows === 5))).toBe(true)
    }
  })

  test.each(TYPES)('linear with %s of more tokens than tiles serve', (type) => {
    const tokens = TILED_TOKENS + 4
    compare(cuda(), 1e-3, `T ${tokens}`, (backend) => {
      const capacity = capacityFor(tokens)
      const x = backend.activation([tokens + 2, 544], halves((tokens + 2) * 544, 4))
      const jobs = [72, 64].map((rows, j) => {
        const isAdded = j === 1
        const y = isAdded
          ? backend.tensor([tokens + 2, rows], normals((tokens + 2) * rows, 3))
          : poisonedHalves(backend, [tokens + 2, rows])
        const weight = backend.matrix(randomSource(rows, 544, 'bf16', 6 + j), type)
        return { y, x, weight, epilogue: isAdded ? ('add' as const) : ('relu2' as const) }
      })
      const batch = raggedBatch(capacity, [tokens], [0], 1)
      runOnce(backend, capacity, batch, (ops) => ops.linear(jobs))
      return jobs.map(({ y, weight: { rows } }) => backend.readTensor(y, 0, tokens * rows))
    })
  })

  test('logits of 8 bits, and of a matrix that is copied in parts', () => {
    const [C, V] = [4096, 16_648]
    let state = 1
    const bits = Uint16Array.from({ length: C * 64 }, () => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
      return 0x3c00 | ((state >>> 16) & 0x80ff)
    })
    const source: MatrixSource = {
      ...{ name: 'wide', rows: V, columns: C, dtype: 'bf16' },
      // Rows repeat every 64, each time with another beginning.
      readRows: (start, end) => {
        const rows = new Uint16Array((end - start) * C)
        for (let row = start; row < end; row++) {
          rows.set(bits.subarray((row % 64) * C, ((row % 64) + 1) * C), (row - start) * C)
          rows[(row - start) * C] = 0x3c00 | (row & 0xff)
        }
        return new Uint8Array(rows.buffer)
      },
    }
    const head = cuda().matrix(source, 'i8')
    const run = (rows: number) => {
      const capacity = { tokens: 1, rows: 1, logits: rows, samples: 0 }
      const batch = raggedBatch(capacity, [1], [0], 1)
      batch.numLogits = rows
      const y = cuda().tensor([rows, V], new Float32Array(rows * V).fill(Number.NaN))
      const x = cuda().activation([rows, C], halves(rows * C, 3))
      runOnce(cuda(), capacity, batch, (ops) => ops.logits(y, x, head))
      return cuda().readTensor(y, 0, 8 * V)
    }
    const few = run(8)
    expect(rmsRatio(run(80), few)).toBeLessThan(1e-3)
    expect(rmsRatio(run(TILED_TOKENS + 4), few)).toBeLessThan(1e-3)
  })
})

/** The nearest e4m3. */
function toE4m3(value: number): number {
  const magnitude = Math.min(448, Math.abs(value))
  if (magnitude === 0) return 0
  const step = 2 ** (Math.max(-6, Math.floor(Math.log2(magnitude))) - 3)
  const steps = magnitude / step
  const even = 2 * Math.round(steps / 2)
  const nearest = Math.abs(steps - even) === 0.5 ? even : Math.round(steps)
  return Math.sign(value) * Math.min(448, nearest * step)
}

/** Rows as fp8 holds them: e4m3 times a scale. */
function roundRows(values: Float32Array, columns: number): Float32Array {
  const rounded = new Float32Array(values.length)
  for (let at = 0; at < values.length; at += columns) {
    const row = values.subarray(at, at + columns)
    const largest = row.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
    const inverse = Math.fround(448 / largest)
    const scale = Math.fround(largest / 448)
    for (const [i, x] of row.entries()) rounded[at + i] = toE4m3(Math.fround(x * inverse)) * scale
  }
  return rounded
}

describeCuda('products with fp8 on cuda', () => {
  const reference = createReferenceBackend()
  const cuda = backendOfGroup()
  afterEach(() => void vi.restoreAllMocks())

  const SHAPES = [
    [16, 32],
    [80, 768],
    [1024, 544],
    [2048, 2048],
  ] as const

  const run = (backend: Backend, tokens: number, isRounded: boolean) => {
    const capacity = capacityFor(tokens)
    const jobs = SHAPES.map(([rows, columns], j) => {
      const isAdded = j === 3
      const count = (tokens + 2) * rows
      const values = isAdded ? normals(count, 70 + j) : new Float32Array(count).fill(Number.NaN)
      const y = isAdded
        ? backend.tensor([tokens + 2, rows], values)
        : backend.activation([tokens + 2, rows], values)
      const inputs = halves((tokens + 2) * columns, 30 + j, 1.5)
      const x = backend.activation(
        [tokens + 2, columns],
        isRounded ? roundRows(inputs, columns) : inputs,
      )
      const source = randomSource(rows, columns, 'bf16', 40 + j)
      const weight = backend === cuda() ? backend.matrix(source, 'fp8') : inF32(backend, source)
      const bias = isAdded ? {} : { bias: backend.tensor([rows], normals(rows, 50 + j)) }
      const epilogue: Epilogue = isAdded ? 'add' : j === 1 ? 'sigmoid' : 'none'
      return { y, x, weight, epilogue, ...bias }
    })
    runOnce(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear(jobs))
    return jobs.map(({ y, weight }) => backend.readTensor(y, 0, tokens * weight.rows))
  }

  /** The rounded weights, for a backend that does not round. */
  const inF32 = (backend: Backend, source: MatrixSource): Matrix => {
    const { columns } = source
    const rounded = roundRows(valuesOf(source), columns)
    const readRows = (start: number, end: number) =>
      new Uint8Array(rounded.buffer, 4 * start * columns, 4 * (end - start) * columns)
    return backend.matrix({ ...source, dtype: 'f32', readRows }, 'f32')
  }

  const check = (tokens: number) => {
    const isRounded = tokens > EXACT_TOKENS
    const expected = run(reference, tokens, isRounded)
    for (const [j, y] of run(cuda(), tokens, false).entries())
      expect(rmsRatio(y, expected[j]!), `output ${j}`).toBeLessThan(isRounded ? 3e-3 : 1e-3)
  }

  test.each([1, 8, 9, 31, 33, 130, 400])('linear of %i tokens', check)

  test.each([40, 300])('linear of %i tokens where the library has no scales', (tokens) => {
    vi.spyOn(Gemm.prototype, 'scalesRows').mockReturnValue(false)
    check(tokens)
  })

  test('the library has scales on this chip, or the other way was tested alone', () => {
    const gemm = new Gemm(cuda().device)
    const [major] = cuda().device.computeCapability
    expect(['f16', 'f32'].map((type) => gemm.scalesRows(type as 'f16' | 'f32'))).toEqual(
      major === 9 ? [true, true] : [expect.any(Boolean), expect.any(Boolean)],
    )
    gemm.dispose()
  })

  test('a token that is no number fails alone', () => {
    const [tokens, C, rows] = [40, 128, 64]
    const capacity = capacityFor(tokens)
    const inputs = halves((tokens + 2) * C, 1)
    inputs[7 * C + 3] = Number.NaN
    inputs.fill(0, 9 * C, 10 * C)
    const x = cuda().activation([tokens + 2, C], inputs)
    const y = poisonedHalves(cuda(), [tokens + 2, rows])
    const weight = cuda().matrix(randomSource(rows, C, 'bf16', 2), 'fp8')
    runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
      ops.linear([{ y, x, weight }]),
    )
    const found = cuda().readTensor(y, 0, tokens * rows)
    expect(found.every((one, i) => Number.isNaN(one) === (Math.floor(i / rows) === 7))).toBe(true)
    expect(found.subarray(9 * rows, 10 * rows).every((one) => one === 0)).toBe(true)
  })
})
