/** Shared by the tests of ops on cuda: inputs that are exact in f16, states, and the comparison with the reference. */
import { expect } from 'vitest'
import type { Backend, Matrix, StatePool, StateShape, Tensor } from '../../src/backend/backend.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { roundToF16 } from '../../src/backend/reference/tensors.ts'
import type { MatrixSource } from '../../src/backend/weight-types.ts'
import { normals, rmsRatio } from '../backend/kit.ts'

const reference = createReferenceBackend()

/** Integer types. */
export const INTEGERS = ['i8', 'q4', 'nf4'] as const
/** The most tokens that tiles take (linear-tiles.cu, capability 9.0). */
export const TILED_TOKENS = 4096

/** Two products whose tiles have this size, if so many pairs of blocks fit on the chip; rounded.test.ts checks that. */
export const TILED = [
  { tile: '128x64', tokens: 33, atOnce: 2, rows: [112, 240], columns: 544 },
  { tile: '128x64', tokens: 40, atOnce: 1, rows: [112, 240], columns: 544 },
  { tile: '128x128', tokens: 120, atOnce: 2, rows: [112, 240], columns: 544 },
  { tile: '128x160', tokens: 150, atOnce: 2, rows: [112, 240], columns: 544 },
  { tile: '128x256', tokens: 250, atOnce: 2, rows: [112, 240], columns: 544 },
  { tile: '192x128', tokens: 120, atOnce: 2, rows: [272, 368], columns: 544 },
  { tile: '192x160', tokens: 310, atOnce: 4, rows: [272, 368], columns: 544 },
  { tile: '256x160', tokens: 150, atOnce: 2, rows: [400, 496], columns: 544 },
  { tile: '128x64', shares: 2, tokens: 40, atOnce: 4, rows: [48, 16], columns: 16_416 },
  { tile: '128x64', shares: 4, tokens: 40, atOnce: 8, rows: [48, 16], columns: 16_416 },
  { tile: '128x128', shares: 2, tokens: 120, atOnce: 4, rows: [48, 16], columns: 16_416 },
  { tile: '128x160', shares: 4, tokens: 150, atOnce: 8, rows: [48, 16], columns: 16_416 },
  { tile: '128x256', shares: 4, tokens: 250, atOnce: 8, rows: [48, 16], columns: 16_416 },
  { tile: '192x128', shares: 3, tokens: 100, atOnce: 6, rows: [368, 352], columns: 8_224 },
  { tile: '192x160', shares: 3, tokens: 136, atOnce: 6, rows: [368, 352], columns: 8_224 },
  { tile: '256x160', shares: 3, tokens: 136, atOnce: 6, rows: [496, 480], columns: 8_224 },
  // Three tiles without shares, one with three.
  { tile: '128x256', whole: 3, shares: 3, tokens: 250, atOnce: 3, rows: [768, 16], columns: 8_224 },
] as const

/** Row lengths, shortest first as a batch has them, and the slots they run in. */
export const BATCHES = [
  { lengths: [1], slots: [0] },
  { lengths: [5], slots: [3] },
  { lengths: [1, 1, 1], slots: [2, 0, 4] },
  { lengths: [1, 2, 3, 7], slots: [1, 3, 4, 0] },
  { lengths: [8, 9], slots: [1, 2] },
  { lengths: [70], slots: [1] },
  { lengths: [1, 101, 200], slots: [1, 0, 3] },
  { lengths: [1, 1, 17, 31, 40], slots: [2, 4, 1, 0, 3] },
] as const

/** Numbers that are exact in f16, so that both backends start from the same. */
export function halves(count: number, seed: number, scale = 1): Float32Array {
  return normals(count, seed, scale).map(roundToF16)
}

/** Some rows of a matrix, and two of NaN as guard. */
export function guardedRows(values: Float32Array, columns: number, rows: readonly number[]): Float32Array {
  const out = new Float32Array((rows.length + 2) * columns).fill(Number.NaN)
  for (const [i, row] of rows.entries()) out.set(values.subarray(row * columns, (row + 1) * columns), i * columns)
  return out
}

export function poisonedHalves(backend: Backend, shape: readonly number[]) {
  const count = shape.reduce((a, b) => a * b, 1)
  return backend.activation(shape, new Float32Array(count).fill(Number.NaN))
}

/** What a poisoned tensor has from `start` on is still there. */
export function expectUnwritten(backend: Backend, tensor: Tensor, start: number): void {
  expect(backend.readTensor(tensor, start).result().every(Number.isNaN)).toBe(true)
}

/** The numbers of a source of bf16. */
export function valuesOf({ rows, readRows }: MatrixSource): Float32Array {
  const bytes = readRows(0, rows)
  const words = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2)
  return new Float32Array(Uint32Array.from(words, (bits) => bits << 16).buffer)
}

/** A pool of five slots with random contents. */
export function randomStates(backend: Backend, shape: StateShape): StatePool {
  const pool = backend.statePool(shape, 5)
  const { layers, channels, heads, headSize } = shape
  for (let slot = 0; slot < 5; slot++)
    pool
      .write(slot, [
        normals(layers * 2 * channels, 100 + slot),
        halves(layers * heads * headSize ** 2, 200 + slot, 0.3),
      ])
      .result()
  return pool
}

export function readStates(pool: StatePool, part: 'shift' | 'wkv'): Float32Array {
  const slots = Array.from({ length: pool.numSlots }, (_, slot) => pool.read(slot).result()[part === 'shift' ? 0 : 1]!)
  const all = new Float32Array(slots.length * slots[0]!.length)
  for (const [i, values] of slots.entries()) all.set(values, i * values.length)
  return all
}

/** Runs the same test body on both backends and compares all it returns. */
export function compare(
  cuda: Backend,
  tolerance: number,
  what: string,
  body: (backend: Backend) => Float32Array[],
): void {
  const expected = body(reference)
  for (const [i, actual] of body(cuda).entries())
    expect(rmsRatio(actual, expected[i]!), `${what}, output ${i}`).toBeLessThan(tolerance)
}

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

/** Rows as fp8 stores them: e4m3 times a scale. */
export function roundRows(values: Float32Array, columns: number): Float32Array {
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

/** A matrix with the values that fp8 holds, for a backend that does not round. */
export function inFp8(backend: Backend, source: MatrixSource): Matrix {
  const { columns } = source
  const rounded = roundRows(valuesOf(source), columns)
  const readRows = (start: number, end: number) =>
    new Uint8Array(rounded.buffer, 4 * start * columns, 4 * (end - start) * columns)
  return backend.matrix({ ...source, dtype: 'f32', readRows }, 'f32')
}
