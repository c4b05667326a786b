import { afterEach, expect, test, vi } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { MOST_TOKENS_OF_FP8 } from '../../src/backend/cuda/linear/rounded-tiles.ts'
import { CopyBudget } from '../../src/backend/cuda/linear/sparse.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { MatrixSource } from '../../src/backend/weight-types.ts'
import { capacityFor, normals, raggedBatch, randomSource, rmsRatio, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { compare, halves, INTEGERS, inFp8, poisonedHalves, TILED, TILED_TOKENS } from './ops-kit.ts'

/** Two products of one launch, with this many rows each: one with relu², one added to its output. */
function linearOf(
  backend: Backend,
  type: (typeof INTEGERS)[number] | 'fp8',
  tokens: number,
  rowsOf: readonly [number, number],
  columns: number,
): Float32Array[] {
  const capacity = capacityFor(tokens)
  const jobs = rowsOf.map((rows, j) => {
    const isAdded = j === 1
    const y = isAdded
      ? backend.tensor([tokens + 2, rows], normals((tokens + 2) * rows, 3))
      : poisonedHalves(backend, [tokens + 2, rows])
    const x = backend.activation([tokens + 2, columns], halves((tokens + 2) * columns, 4 + j))
    const source = randomSource(rows, columns, 'bf16', 6 + j)
    const isRounded = type !== 'fp8' || backend.name === 'cuda'
    const weight = isRounded ? backend.matrix(source, type) : inFp8(backend, source)
    return { y, x, weight, epilogue: isAdded ? ('add' as const) : ('relu2' as const) }
  })
  const batch = raggedBatch(capacity, [tokens], [0], 1)
  runOnce(backend, capacity, batch, (ops) => ops.linear(jobs))
  return jobs.map(({ y, weight: { rows } }) => backend.readTensor(y, 0, tokens * rows).result())
}

describeCuda('products of many tokens with integers on cuda', () => {
  const cuda = backendOfGroup()
  const reference = createReferenceBackend()
  afterEach(() => void vi.restoreAllMocks())

  // Of more tokens in fp8 the library has the products.
  const CASES = ([...INTEGERS, 'fp8'] as const).flatMap((type) =>
    TILED.filter(({ tokens }) => type !== 'fp8' || tokens <= MOST_TOKENS_OF_FP8).map((one) => ({ type, ...one })),
  )

  test.each(CASES)(
    'linear with $type of $tokens tokens in tiles of $tile, $atOnce at once',
    ({ type, tokens, atOnce, rows, columns }) => {
      vi.spyOn(cuda().device, 'clustersAtOnce').mockReturnValue(atOnce)
      const run = (backend: Backend, count: number = tokens) => linearOf(backend, type, count, rows, columns)
      const outputs = run(cuda())
      for (const [j, expected] of run(reference).entries())
        expect(rmsRatio(outputs[j]!, expected), `output ${j}`).toBeLessThan(1e-3)
      // The order of additions is always the same, and so with one token fewer in the same bucket.
      expect(run(cuda())).toEqual(outputs)
      if (tokens === 33) return
      for (const [j, y] of run(cuda(), tokens - 1).entries()) expect(y).toEqual(outputs[j]!.subarray(0, y.length))
    },
  )

  test.each(INTEGERS)('linear with %s of more tokens than tiles take', (type) => {
    const tokens = TILED_TOKENS + 4
    compare(cuda(), 1e-3, `T ${tokens}`, (backend) => linearOf(backend, type, tokens, [72, 64], 544))
  })

  test.each([...INTEGERS, 'fp8'] as const)('linear with %s by copies in f16, and without memory for them', (type) => {
    const rows = [640, 576] as const
    const take = vi.spyOn(CopyBudget.prototype, 'take')
    for (const tokens of [40, 250]) {
      const run = (backend: Backend) => linearOf(backend, type, tokens, rows, 640)
      const byCopies = run(cuda())
      expect(take.mock.lastCall).toEqual([2 * (rows[0] + rows[1]) * 640])
      expect(take.mock.results.at(-1)?.value).toBe(true)
      take.mockReturnValueOnce(false)
      const without = run(cuda())
      // More than 128 tokens of fp8 are rounded then.
      const most = type === 'fp8' && tokens > MOST_TOKENS_OF_FP8 ? 0.05 : 1e-3
      for (const [j, expected] of run(reference).entries()) {
        expect(rmsRatio(byCopies[j]!, expected), `output ${j} of ${tokens} tokens`).toBeLessThan(1e-3)
        expect(rmsRatio(without[j]!, expected), `output ${j} of ${tokens} tokens, without`).toBeLessThan(most)
      }
    }
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
      // Rows repeat every 64, each time with a different beginning.
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
      return cuda()
        .readTensor(y, 0, 8 * V)
        .result()
    }
    const few = run(8)
    expect(rmsRatio(run(80), few)).toBeLessThan(1e-3)
    expect(rmsRatio(run(TILED_TOKENS + 4), few)).toBeLessThan(1e-3)
    vi.spyOn(CopyBudget.prototype, 'take').mockReturnValue(false)
    expect(rmsRatio(run(TILED_TOKENS + 4), few)).toBeLessThan(1e-3)
  })
})
