import { expect, test } from 'vitest'
import type { Backend, Epilogue, LinearJob } from '../../src/backend/backend.ts'
import type { CudaBackend } from '../../src/backend/cuda/cuda.ts'
import { NativeArena } from '../../src/backend/cuda/driver/arena.ts'
import { Gemm } from '../../src/backend/cuda/gemm/gemm.ts'
import { type Cut, lowRank, TILES } from '../../src/backend/cuda/linear/low-rank.ts'
import { productOf } from '../../src/backend/cuda/linear/product.ts'
import { StepBuffer } from '../../src/backend/cuda/step/buffer.ts'
import { StepStream } from '../../src/backend/cuda/step/command.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { capacityFor, normals, raggedBatch, randomSource, rmsRatio, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { expectUnwritten, halves } from './ops-kit.ts'

/** rows, columns: ends of tiles and of chunks in all places. */
const JOBS: readonly (readonly [number, number, Epilogue])[] = [
  [32, 520, 'none'],
  [96, 768, 'tanh'],
  [480, 1024, 'sigmoid'],
  [136, 72, 'relu2'],
]

/** Data beyond the tokens is NaN, and so is token 5 of every input. */
function jobsOf(backend: Backend, tokens: number): LinearJob[] {
  return JOBS.map(([rows, columns, epilogue], j) => {
    const values = halves((tokens + 2) * columns, 30 + j)
    values.fill(Number.NaN, tokens * columns)
    values[5 * columns + j] = Number.NaN
    return {
      y: backend.activation([tokens + 2, rows]),
      x: backend.activation([tokens + 2, columns], values),
      weight: backend.matrix(randomSource(rows, columns, 'bf16', 40 + j), 'bf16'),
      epilogue,
      ...(j === 1 ? {} : { bias: backend.tensor([rows], normals(rows, 50 + j)) }),
    }
  })
}

function outputsOf(backend: Backend, jobs: readonly LinearJob[], tokens: number): Float32Array[] {
  return jobs.map(({ y, weight }) => backend.readTensor(y, 0, tokens * weight.rows).result())
}

/** Outputs of token 5, and of all others. */
function partsOf(values: Float32Array, rows: number): [Float32Array, Float32Array] {
  const others = [...values.subarray(0, 5 * rows), ...values.subarray(6 * rows)]
  return [values.subarray(5 * rows, 6 * rows), Float32Array.from(others)]
}

/** A step with a larger capacity than its tokens, as in a graph. */
function runCut(
  backend: CudaBackend,
  gemm: Gemm,
  jobs: readonly LinearJob[],
  tokens: number,
  cut: Cut,
): Float32Array[] {
  const { device } = backend
  const capacity = capacityFor(tokens)
  const buffer = new StepBuffer(device, capacity)
  const products = jobs.map((job) => productOf(job, capacity.tokens))
  buffer.upload(raggedBatch(capacity, [tokens], [0], 1), { singles: 0, longRows: 1 })
  for (const { y, weight } of jobs)
    backend.writeTensor(y, new Float32Array((tokens + 2) * weight.rows).fill(Number.NaN))
  const run = lowRank(device, products, 0, () => cut)
  run(new StepStream(device, gemm, buffer, new NativeArena()), tokens + 100)
  const outputs = outputsOf(backend, jobs, tokens)
  for (const { y, weight } of jobs) expectUnwritten(backend, y, tokens * weight.rows)
  buffer.dispose()
  return outputs
}

describeCuda('low ranks on cuda', () => {
  const cuda = backendOfGroup()
  const reference = createReferenceBackend()

  test.each([33, 65, 127, 321])('%i tokens, in every tile and in shares', (tokens) => {
    const { device } = cuda()
    if (device.computeCapability[0] < 9) return
    const capacity = capacityFor(tokens)
    const batch = raggedBatch(capacity, [tokens], [0], 1)
    const referenceJobs = jobsOf(reference, tokens)
    runOnce(reference, capacity, batch, (ops) => ops.linear(referenceJobs))
    const expected = outputsOf(reference, referenceJobs, tokens)
    const jobs = jobsOf(cuda(), tokens)
    const gemm = new Gemm(device)
    for (const splits of [1, 2, 4, 8]) {
      const tiles = TILES.filter(
        ({ tokens: lines, rows, stages }) => 128 * stages * (lines + rows) <= device.info.sharedBytesPerBlock,
      )
      const all = tiles.map((tile) => runCut(cuda(), gemm, jobs, tokens, { tile, splits }))
      for (const [j, actual] of all[0]!.entries()) {
        const rows = JOBS[j]![0]
        const [poisoned, others] = partsOf(actual, rows)
        expect(poisoned.every(Number.isNaN), `job ${j}, splits ${splits}`).toBe(true)
        const [, wanted] = partsOf(expected[j]!, rows)
        expect(rmsRatio(others, wanted), `job ${j}, splits ${splits}`).toBeLessThan(1e-3)
      }
      // The order of sums does not depend on the tile.
      const bytes = all.map((outputs) => Buffer.concat(outputs.map(({ buffer }) => Buffer.from(buffer))))
      for (const other of bytes) expect(other.equals(bytes[0]!), `splits ${splits}`).toBe(true)
    }
    gemm.dispose()
  })
})
