/** What op tests share: seeded numbers, matrix sources, batches, and the comparison with the reference. */
import {
  type Backend,
  type Batch,
  type Capacity,
  createBatch,
  type MatrixSource,
  type Ops,
  type SourceType,
  type Tensor,
} from '../../src/backend/backend.ts'
import { availableLevels, cpuReport } from '../../src/backend/cpu/isa.ts'
import { seededRandom as uniforms } from '../../src/bench/serve/random.ts'

/** The ISA levels this machine can test; empty when no compiler built the kernels. */
export const LEVELS = cpuReport().problem === null ? availableLevels() : []

/** Uniform numbers in [0, 1), the same for the same seed */
export { uniforms }

/** `count` normal numbers. */
export function normals(count: number, seed: number, scale = 1): Float32Array {
  const next = uniforms(seed)
  return Float32Array.from(
    { length: count },
    () => scale * Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()),
  )
}

/** Normal weights of a matrix, encoded as `dtype`. f16 is drawn as bits, so that denormals are among them. */
export function randomSource(
  rows: number,
  columns: number,
  dtype: SourceType,
  seed: number,
): MatrixSource {
  const values = normals(rows * columns, seed, 1 / Math.sqrt(columns))
  const bytes = encode(values, dtype, seed)
  const rowBytes = bytes.length / rows
  return {
    name: `random ${rows}×${columns}`,
    rows,
    columns,
    dtype,
    readRows: (start, end) => bytes.slice(start * rowBytes, end * rowBytes),
  }
}

function encode(values: Float32Array, dtype: SourceType, seed: number): Uint8Array {
  if (dtype === 'f32') return new Uint8Array(values.buffer.slice(0))
  const bits = new Uint16Array(values.length)
  const words = new Uint32Array(values.buffer)
  const next = uniforms(seed + 1)
  for (let i = 0; i < bits.length; i++)
    bits[i] =
      dtype === 'bf16'
        ? words[i]! >>> 16
        : // sign, exponent 0 (denormal) to 12 (just below 1/4), fraction
          (next() < 0.5 ? 0x8000 : 0) | Math.floor(next() * (13 << 10))
  return new Uint8Array(bits.buffer)
}

/** Root of the mean square of the difference over that of the expected; NaN when anything is NaN. */
export function rmsRatio(actual: Float32Array, expected: Float32Array): number {
  if (actual.length !== expected.length) return Number.NaN
  let difference = 0
  let size = 0
  for (let i = 0; i < expected.length; i++) {
    difference += (actual[i]! - expected[i]!) ** 2
    size += expected[i]! ** 2
  }
  return Math.sqrt(difference / Math.max(size, 1e-30))
}

/** A tensor full of NaN: what an op does not write stays visible. */
export function poisoned(backend: Backend, shape: readonly number[]): Tensor {
  const count = shape.reduce((a, b) => a * b, 1)
  return backend.tensor(shape, new Float32Array(count).fill(Number.NaN))
}

/** A batch of rows with the given numbers of tokens. */
export function raggedBatch(
  capacity: Capacity,
  lengths: readonly number[],
  slots: readonly number[],
  vocabSize: number,
): Batch {
  const batch = createBatch(capacity)
  const next = uniforms(lengths.length)
  for (const [b, length] of lengths.entries()) {
    batch.slots[b] = slots[b]!
    for (let i = 0; i < length; i++)
      batch.tokens[batch.numTokens++] = Math.floor(next() * vocabSize)
    batch.starts[b + 1] = batch.numTokens
  }
  batch.numRows = lengths.length
  return batch
}

/** Records `build` alone, runs it once and forgets it. */
export function runOnce(
  backend: Backend,
  capacity: Capacity,
  batch: Batch,
  build: (ops: Ops) => void,
): void {
  const program = backend.record(capacity, build)
  program.run(batch)
  program.dispose()
}

/** The capacity that a number of tokens needs, with two rows to spare as guard. */
export function capacityFor(tokens: number, rows = 1): Capacity {
  return { tokens: tokens + 2, rows, logits: tokens + 2, samples: Math.max(rows, 1) }
}
