import { expect, test } from 'vitest'
import type { Backend, Epilogue, Matrix } from '../../src/backend/backend.ts'
import type { CudaBackend } from '../../src/backend/cuda/cuda.ts'
import { quantiseRows } from '../../src/backend/reference/quantise.ts'
import type { MatrixSource } from '../../src/backend/weight-types.ts'
import { capacityFor, normals, raggedBatch, randomSource, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { compare, expectUnwritten, halves, INTEGERS, poisonedHalves, TILED_TOKENS, valuesOf } from './ops-kit.ts'

/** rows × columns of W: widths of the released models, and sizes that fill neither runs nor groups. */
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
/**
 * Up to this many tokens nothing beyond the batch is written; with tiles (capability 9.0) up to more, for integer
 * weights.
 */
const EXACT_TOKENS = 32

/** The jobs of one linear, each with inputs of its own. `matrixOf` may depend on the job. */
function jobsOf(backend: Backend, tokens: number, matrixOf: (source: MatrixSource, j: number) => Matrix) {
  return MATRICES.map(([rows, columns], j) => {
    const epilogue = EPILOGUES[j]!
    const isAdded = epilogue === 'add'
    const values = halves((tokens + 2) * rows, 60 + j).fill(Number.NaN, isAdded ? tokens * rows : 0)
    // The residual is f32 as in a model; once also f16.
    const y = j === 4 ? backend.tensor([tokens + 2, rows], values) : backend.activation([tokens + 2, rows], values)
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
      expectUnwritten(backend, y, tokens * rows)
    return backend.readTensor(y, 0, tokens * rows).result()
  })
}

function isTiled(backend: Backend): boolean {
  return 'device' in backend && (backend as CudaBackend).device.computeCapability[0] === 9
}

/** The same matrix as a file with quantised rows holds it. */
function roundedSource(source: MatrixSource, type: (typeof INTEGERS)[number]): MatrixSource {
  const values = valuesOf(source)
  const readRows = (start: number, end: number) =>
    quantiseRows(type, values.subarray(start * source.columns, end * source.columns), source.columns)
  return { ...source, quantised: { type, readRows } }
}

describeCuda('products with integers on cuda', () => {
  const cuda = backendOfGroup()

  test.each(
    INTEGERS.flatMap((type) => [1, 3, 9, 32, 33, 65, 100, 150, 300, 1100].map((tokens) => [type, tokens] as const)),
  )('linear with %s of %i tokens', (type, tokens) => {
    compare(cuda(), 1e-3, `T ${tokens}`, (backend) =>
      // Low-rank factors stay in f16 beside them.
      linearOf(backend, tokens, (source, j) => backend.matrix(source, j === 2 ? 'bf16' : type)),
    )
  })

  test.each(INTEGERS)('%s from a file equals rounding at load', (type) => {
    for (const tokens of [1, 70, 130, 1100]) {
      const fromFile = linearOf(cuda(), tokens, (source) => cuda().matrix(roundedSource(source, type), type))
      expect(fromFile).toEqual(linearOf(cuda(), tokens, (source) => cuda().matrix(source, type)))
    }
  })

  // Few rows, and as many as a warp takes at a time.
  test.each(INTEGERS.flatMap((type) => [[type, 512, 2048] as const, [type, 12_008, 512] as const]))(
    '%s: a token among up to 32 has the same sums as alone, %i rows of %i',
    (type, rows, C) => {
      const weight = cuda().matrix(randomSource(rows, C, 'bf16', 1), type)
      const inputs = halves(32 * C, 2)
      const first = (tokens: number) => {
        const x = cuda().activation([tokens, C], inputs.slice(0, tokens * C))
        const y = cuda().activation([tokens, rows])
        const capacity = { ...capacityFor(tokens), tokens }
        runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
        return cuda().readTensor(y, 0, rows).result()
      }
      const alone = first(1)
      for (const tokens of [2, 8, 9, 20, 32]) expect(first(tokens), `${tokens}`).toEqual(alone)
    },
  )

  test.each(INTEGERS)('%s: a NaN weight affects its row only', (type) => {
    const [C, rows] = [128, 64]
    const values = normals(rows * C, 1)
    values[5 * C + 70] = Number.NaN
    const source = {
      ...{ name: 'with a NaN', rows, columns: C, dtype: 'f32' as const },
      readRows: (start: number, end: number) => new Uint8Array(values.buffer, 4 * start * C, 4 * (end - start) * C),
    }
    for (const tokens of [1, 70, 130, 1100]) {
      const capacity = capacityFor(tokens)
      const x = cuda().activation([tokens + 2, C], halves((tokens + 2) * C, 2))
      const y = poisonedHalves(cuda(), [tokens + 2, rows])
      const weight = cuda().matrix(source, type)
      runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
      const found = cuda()
        .readTensor(y, 0, tokens * rows)
        .result()
      expect(found.every((value, i) => Number.isNaN(value) === (i % rows === 5))).toBe(true)
    }
  })
})
