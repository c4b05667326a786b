/** Shared by op tests: seeded numbers, matrix sources, batches, and the comparison with the reference. */
import { expect } from 'vitest'
import type {
  Backend,
  Epilogue,
  Matrix,
  Norm,
  Ops,
  Program,
  StatePool,
  StateShape,
  Tensor,
} from '../../src/backend/backend.ts'
import { type Batch, type Capacity, createBatch } from '../../src/backend/batch.ts'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { availableLevels, cpuReport } from '../../src/backend/cpu/isa.ts'
import { type Flight, landed } from '../../src/backend/flight.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { openWebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { MatrixSource, SourceType, WeightType } from '../../src/backend/weight-types.ts'
import { seededRandom as uniforms } from '../../src/bench/serve/random.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'

/** The ISA levels this machine can test; empty when no compiler built the kernels. */
export const LEVELS = cpuReport().problem === null ? availableLevels() : []

/** The devices of op tests, besides the reference: an ISA level of the cpu backend, or an adapter. */
export interface DeviceUnderTest {
  readonly name: string
  /** Whether products of quantised weights round their inputs, too. */
  readonly roundsActivations: boolean
  /** A software GPU compiles for seconds, so the tests of a commit use fewer sizes on it, unless SKEIN_SLOW=1. */
  readonly isSlow: boolean
  /** Skips most tests on a software GPU, and on the ISA level that few processors need; the nightly run has them. */
  readonly options: { readonly tags?: string }
  open(): Promise<Backend>
}

const WEBGPU: DeviceUnderTest = {
  name: 'webgpu',
  roundsActivations: false,
  isSlow: !IS_SLOW,
  options: { tags: 'night' },
  // With matrix units, inputs of many tokens are rounded: webgpu-matrices.test.ts.
  open: () => openWebgpuBackend(0, { without: ['matrices'] }),
}

export const DEVICES: readonly DeviceUnderTest[] = [
  ...LEVELS.map((isa) => ({
    name: `cpu ${isa}`,
    roundsActivations: true,
    isSlow: false,
    options: isa === 'baseline' && LEVELS.length > 1 ? { tags: 'night' } : {},
    open: async () => createCpuBackend({ isa, threads: 2 }),
  })),
  ...(WEBGPU_PROBLEM === null ? [WEBGPU] : []),
]

/** Uniform numbers in [0, 1), the same for the same seed */
export { uniforms }

const drawn = new Map<string, Float32Array>()

/** `count` normal numbers. Drawn once, so that every device gets the same. */
export function normals(count: number, seed: number, scale = 1): Float32Array {
  const key = `${count} ${seed} ${scale}`
  const known = drawn.get(key)
  if (known !== undefined) return known.slice()
  const next = uniforms(seed)
  const numbers = new Float32Array(count)
  for (let i = 0; i < count; i++)
    numbers[i] = scale * Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
  drawn.set(key, numbers)
  return numbers.slice()
}

const sources = new Map<string, MatrixSource>()

/** Normal weights of a matrix, encoded as `dtype`. f16 is drawn as bits, so that denormals occur. Made once. */
export function randomSource(rows: number, columns: number, dtype: SourceType, seed: number): MatrixSource {
  const key = `${rows}×${columns} ${dtype} ${seed}`
  const source = sources.get(key) ?? encodedSource(rows, columns, dtype, seed)
  sources.set(key, source)
  return source
}

function encodedSource(rows: number, columns: number, dtype: SourceType, seed: number): MatrixSource {
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

const matrices = new WeakMap<Backend, Map<string, Map<MatrixSource, Matrix>>>()

/** A backend's matrix of a source, made once: rounding weights takes longer than products with them. */
export function matrixOf(backend: Backend, source: MatrixSource, type: WeightType): Matrix {
  const ofBackend = matrices.get(backend) ?? new Map<string, Map<MatrixSource, Matrix>>()
  matrices.set(backend, ofBackend)
  const ofType = ofBackend.get(type) ?? new Map<MatrixSource, Matrix>()
  ofBackend.set(type, ofType)
  const matrix = ofType.get(source) ?? backend.matrix(source, type)
  ofType.set(source, matrix)
  return matrix
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

/** The largest difference over the largest expected number. */
export function largestRatio(actual: Float32Array, expected: ArrayLike<number>): number {
  if (actual.length !== expected.length) return Number.NaN
  const largest = Float64Array.from(expected).reduce((most, value) => Math.max(most, Math.abs(value)), 0)
  return actual.reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i]!)), 0) / largest
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

/** A tensor full of NaN, so that elements an op does not write are visible. */
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
    for (let i = 0; i < length; i++) batch.tokens[batch.numTokens++] = Math.floor(next() * vocabSize)
    batch.starts[b + 1] = batch.numTokens
  }
  batch.numRows = lengths.length
  return batch
}

/** Records `build` alone, runs it once and forgets it. */
export function runOnce(backend: Backend, capacity: Capacity, batch: Batch, build: (ops: Ops) => void): void {
  const program = backend.record(capacity, build)
  program.run(batch)
  program.dispose()
}

/** The same, also for a backend that cannot be waited for. */
export async function runStep(
  backend: Backend,
  capacity: Capacity,
  batch: Batch,
  build: (ops: Ops) => void,
): Promise<void> {
  const program = backend.record(capacity, build)
  await run(program, batch)
  program.dispose()
}

/** Runs a step without waiting for a device that cannot be waited for. */
export async function run(program: Program, batch: Batch): Promise<void> {
  const flight = program.flights?.launch(batch)
  if (flight === undefined) return program.run(batch)
  const over: Flight<void> = {
    get isDone() {
      return flight.isDone
    },
    result: () => flight.wait(),
  }
  return landed(over)
}

/** The values of a tensor. */
export function read(backend: Backend, tensor: Tensor, start?: number, count?: number): Promise<Float32Array> {
  return landed(backend.readTensor(tensor, start, count))
}

/** A pool of five slots with random contents. */
export async function randomStates(backend: Backend, shape: StateShape): Promise<StatePool> {
  const pool = backend.statePool(shape, 5)
  const { layers, channels, heads, headSize } = shape
  for (let slot = 0; slot < 5; slot++)
    await landed(
      pool.write(slot, [
        normals(layers * 2 * channels, 100 + slot),
        normals(layers * heads * headSize ** 2, 200 + slot, 0.3),
      ]),
    )
  return pool
}

/** The numbers of all slots, one after another. */
export async function readStates(pool: StatePool): Promise<Float32Array> {
  const numbers: number[] = []
  for (let slot = 0; slot < pool.numSlots; slot++)
    for (const array of await landed(pool.read(slot))) for (const x of array) numbers.push(x)
  return Float32Array.from(numbers)
}

/** The capacity that a number of tokens needs, with two rows to spare as guard. */
/** x followed by two rows of NaN, which kernels must not read. */
export function padded(backend: Backend, x: Float32Array, columns: number): Tensor {
  const values = new Float32Array(x.length + 2 * columns).fill(Number.NaN)
  values.set(x)
  return backend.tensor([values.length / columns, columns], values)
}

export interface Product {
  readonly rows: number
  readonly columns: number
  readonly tokens: number
  readonly epilogue?: Epilogue
  readonly hasBias?: boolean
}

/** y [tokens, rows] of one linear job; checks that nothing else was written. */
export async function multiplied(
  backend: Backend,
  { rows, columns, tokens, epilogue = 'none', hasBias = false }: Product,
  weight: Matrix,
  x: Float32Array,
): Promise<Float32Array> {
  const capacity = capacityFor(tokens)
  const y =
    epilogue === 'add'
      ? backend.tensor([tokens + 2, rows], normals((tokens + 2) * rows, 5))
      : poisoned(backend, [tokens + 2, rows])
  const guard = await read(backend, y, tokens * rows)
  await runStep(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => {
    const job = { y, x: padded(backend, x, columns), weight, epilogue }
    ops.linear([hasBias ? { ...job, bias: backend.tensor([rows], normals(rows, 6)) } : job])
  })
  expect(await read(backend, y, tokens * rows)).toEqual(guard)
  return await read(backend, y, 0, tokens * rows)
}

export function capacityFor(tokens: number, rows = 1): Capacity {
  return { tokens: tokens + 2, rows, logits: tokens + 2, samples: Math.max(rows, 1) }
}

const reference = createReferenceBackend()

/** Row lengths and the slots they run in. */
export const BATCHES = [
  { lengths: [1], slots: [0] },
  { lengths: [5], slots: [3] },
  { lengths: [1, 1, 1], slots: [2, 0, 4] },
  { lengths: [3, 1, 7, 2], slots: [4, 1, 0, 3] },
  { lengths: [70], slots: [1] },
  { lengths: [1, 20, 2], slots: [2, 0, 3] },
] as const

/** heads × head size; the last has an odd number of vectors on every level. */
export const SHAPES = [
  [1, 64],
  [4, 64],
  [3, 32],
  [2, 16],
  [2, 48],
] as const

export function randomNorm(backend: Backend, C: number, eps: number, seed: number): Norm {
  return { weight: backend.tensor([C], normals(C, seed)), bias: backend.tensor([C], normals(C, seed + 1)), eps }
}

/** The vectors of a WKV-7 layer that no token changes. */
export function wkv7Weights(backend: Backend, C: number) {
  const constant = (seed: number) => backend.tensor([C], normals(C, seed))
  return { k_k: constant(11), k_a: constant(12), r_k: constant(13), ln_x: randomNorm(backend, C, 64e-5, 14) }
}

/** Runs the same test body on both backends and compares all it returns. */
export async function compare(
  tested: Backend,
  tolerance: number,
  what: string,
  body: (backend: Backend) => Promise<Float32Array[]>,
): Promise<void> {
  const expected = await body(reference)
  for (const [i, actual] of (await body(tested)).entries())
    expect(rmsRatio(actual, expected[i]!), `${what}, output ${i}`).toBeLessThan(tolerance)
}
