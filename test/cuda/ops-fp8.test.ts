import { afterEach, expect, test, vi } from 'vitest'
import type { Backend, Epilogue } from '../../src/backend/backend.ts'
import { Gemm } from '../../src/backend/cuda/gemm/gemm.ts'
import { MOST_TOKENS_OF_FP8 } from '../../src/backend/cuda/linear/rounded-tiles.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { capacityFor, normals, raggedBatch, randomSource, rmsRatio, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { halves, inFp8, poisonedHalves, roundRows } from './ops-kit.ts'

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
      const y = isAdded ? backend.tensor([tokens + 2, rows], values) : backend.activation([tokens + 2, rows], values)
      const inputs = halves((tokens + 2) * columns, 30 + j, 1.5)
      const x = backend.activation([tokens + 2, columns], isRounded ? roundRows(inputs, columns) : inputs)
      const source = randomSource(rows, columns, 'bf16', 40 + j)
      const weight = backend === cuda() ? backend.matrix(source, 'fp8') : inFp8(backend, source)
      const bias = isAdded ? {} : { bias: backend.tensor([rows], normals(rows, 50 + j)) }
      const epilogue: Epilogue = isAdded ? 'add' : j === 1 ? 'sigmoid' : 'none'
      return { y, x, weight, epilogue, ...bias }
    })
    runOnce(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear(jobs))
    return jobs.map(({ y, weight }) => backend.readTensor(y, 0, tokens * weight.rows).result())
  }

  const check = (tokens: number) => {
    // The library's products round their inputs, tiles do not.
    const isRounded = tokens > MOST_TOKENS_OF_FP8
    const expected = run(reference, tokens, isRounded)
    for (const [j, y] of run(cuda(), tokens, false).entries())
      expect(rmsRatio(y, expected[j]!), `output ${j}`).toBeLessThan(isRounded ? 3e-3 : 1e-3)
  }

  test.each([1, 8, 9, 31, 33, 130, 400])('linear of %i tokens', check)

  test.each([40, 300])('linear of %i tokens if the library has no scales', (tokens) => {
    vi.spyOn(Gemm.prototype, 'scalesRows').mockReturnValue(false)
    check(tokens)
  })

  test('the library has scales on this chip, or only the other way was tested', () => {
    const gemm = new Gemm(cuda().device)
    const [major] = cuda().device.computeCapability
    expect(['f16', 'f32'].map((type) => gemm.scalesRows(type as 'f16' | 'f32'))).toEqual(
      major === 9 ? [true, true] : [expect.any(Boolean), expect.any(Boolean)],
    )
    gemm.dispose()
  })

  test('a token with NaN fails alone', () => {
    const [tokens, C, rows] = [40, 128, 64]
    const capacity = capacityFor(tokens)
    const inputs = halves((tokens + 2) * C, 1)
    inputs[7 * C + 3] = Number.NaN
    inputs.fill(0, 9 * C, 10 * C)
    const x = cuda().activation([tokens + 2, C], inputs)
    const y = poisonedHalves(cuda(), [tokens + 2, rows])
    const weight = cuda().matrix(randomSource(rows, C, 'bf16', 2), 'fp8')
    runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
    const found = cuda()
      .readTensor(y, 0, tokens * rows)
      .result()
    expect(found.every((one, i) => Number.isNaN(one) === (Math.floor(i / rows) === 7))).toBe(true)
    expect(found.subarray(9 * rows, 10 * rows).every((one) => one === 0)).toBe(true)
  })
})
