import { describe, expect, test } from 'vitest'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { CpuQuantiser } from '../../src/backend/cpu/quantise.ts'
import { decodeRows, numScales, SCALE_INPUTS, valueBytes } from '../../src/backend/quantised.ts'
import { quantiseRows } from '../../src/backend/reference/quantise.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { MatrixSource, QuantisedType, SourceType } from '../../src/backend/weight-types.ts'
import { capacityFor, LEVELS, normals, poisoned, raggedBatch, randomSource, rmsRatio } from './kit.ts'

const TYPES = ['i8', 'q4', 'nf4'] as const

function floatSource(rows: number, columns: number, values: Float32Array): MatrixSource {
  const bytes = new Uint8Array(values.buffer)
  return {
    name: 'floats',
    rows,
    columns,
    dtype: 'f32',
    readRows: (start, end) => bytes.slice(start * columns * 4, end * columns * 4),
  }
}

/** Weights as f32, whatever the source stores. */
function weightsOf(source: MatrixSource): Float32Array {
  const { rows, columns } = source
  const reference = createReferenceBackend()
  const matrix = reference.matrix(source, 'f32')
  const capacity = capacityFor(columns)
  const identity = Float32Array.from({ length: (columns + 2) * columns }, (_, i) =>
    i % (columns + 1) === 0 && i < columns * columns ? 1 : 0,
  )
  const x = reference.tensor([columns + 2, columns], identity)
  const y = reference.tensor([columns + 2, rows])
  reference
    .record(capacity, (ops) => ops.linear([{ y, x, weight: matrix }]))
    .run(raggedBatch(capacity, [columns], [0], 1))
  const transposed = reference.readTensor(y, 0, columns * rows).result()
  return Float32Array.from(transposed, (_, i) => {
    return transposed[(i % columns) * rows + Math.floor(i / columns)]!
  })
}

/** Groups that rounding could get wrong: zeros, one value, denormals, a single outlier, ties, NaN, infinities. */
function oddities(): Float32Array {
  const values = normals(12 * 128, 3)
  const rows = (row: number) => values.subarray(row * 128, (row + 1) * 128)
  rows(0).fill(0)
  rows(1).fill(-0.75)
  rows(2).forEach((w, i, row) => {
    row[i] = w * 1e-41
  })
  rows(3).forEach((w, i, row) => {
    row[i] = w * 2 ** -99
  })
  rows(4).fill(1e-3)
  rows(4)[17] = -1000
  rows(5).forEach((_, i, row) => {
    row[i] = ((i % 31) - 15) / 2
  })
  rows(6)[40] = Number.NaN
  rows(7)[3] = Number.POSITIVE_INFINITY
  rows(8)[127] = Number.NEGATIVE_INFINITY
  rows(9).fill(3e38)
  rows(10).forEach((_, i, row) => {
    row[i] = i % 2 === 0 ? 1 : -1
  })
  rows(11).fill(-0)
  return values
}

describe.each(TYPES)('rounding to %s', (type) => {
  test('every weight becomes the nearest multiple or level of its scale', () => {
    const weights = normals(7 * 200, 1)
    const rounded = quantiseRows(type, weights, 200)
    const decoded = decodeRows(type, rounded, 200)
    // The distance between neighbours, relative to the largest weight; q4 may clip values beyond its range.
    const step = { i8: 1 / 127, q4: 2 / 6.8, nf4: 39 / 127 }[type]
    for (let row = 0; row < 7; row++) {
      for (let start = 0; start < 200; start += SCALE_INPUTS[type]) {
        const [from, to] = [row * 200 + start, row * 200 + Math.min(200, start + SCALE_INPUTS[type])]
        const group = weights.subarray(from, to)
        const largest = group.reduce((most, w) => Math.max(most, Math.abs(w)), 0)
        for (let i = from; i < to; i++) expect(Math.abs(decoded[i]! - weights[i]!)).toBeLessThan(0.52 * step * largest)
      }
    }
    const bound = { i8: 6e-3, q4: 0.085, nf4: 0.095 }[type]
    expect(rmsRatio(decoded, weights)).toBeLessThan(bound)
    expect(rmsRatio(decoded, weights)).toBeGreaterThan(bound / 2)
  })

  test('rows have the announced size, and are rounded independently', () => {
    const weights = normals(3 * 77, 2)
    const { values, scales } = quantiseRows(type, weights, 77)
    expect(values.length).toBe(3 * valueBytes(type, 77))
    expect(scales.length).toBe(3 * 2 * numScales(type, 77))
    const second = quantiseRows(type, weights.slice(77, 154), 77)
    expect(second.values).toEqual(values.slice(valueBytes(type, 77), 2 * valueBytes(type, 77)))
  })

  test('values that are not finite are not lost', () => {
    const weights = oddities()
    const decoded = decodeRows(type, quantiseRows(type, weights, 128), 128)
    for (const [row, bad] of [
      [6, 40],
      [7, 3],
      [8, 127],
    ] as const)
      expect(decoded[row * 128 + bad]).toBeNaN()
    expect(decoded.subarray(0, 128).every((w) => w === 0)).toBe(true)
  })

  test.each(LEVELS)('%s gives the same bytes', (isa) => {
    const quantiser = new CpuQuantiser({ isa, threads: 2 })
    const same = (source: MatrixSource, weights: Float32Array) => {
      const { rows, columns } = source
      const wanted = quantiseRows(type, weights, columns)
      const found = quantiser.quantise(type, source, 0, rows)
      expect(Buffer.from(found.values).equals(wanted.values)).toBe(true)
      expect(Buffer.from(found.scales).equals(wanted.scales)).toBe(true)
    }
    for (const [rows, columns] of [
      [1, 1],
      [64, 64],
      [130, 96],
      [67, 131],
    ] as const) {
      for (const dtype of ['f32', 'f16', 'bf16'] as const satisfies SourceType[]) {
        const source = randomSource(rows, columns, dtype, rows)
        same(source, weightsOf(source))
      }
    }
    same(floatSource(12, 128, oddities()), oddities())
    quantiser.dispose()
  })

  test.each(LEVELS)('%s multiplies rows of a file like rows that it rounds itself', (isa) => {
    const cpu = createCpuBackend({ isa, threads: 2 })
    for (const [rows, columns] of [
      [130, 96],
      [67, 131],
    ] as const) {
      const source = randomSource(rows, columns, 'f32', 9)
      const filed = fromFile(type, source)
      expect(product(cpu, filed, type)).toEqual(product(cpu, source, type))
    }
    const { quantised, ...rest } = fromFile(type, randomSource(70, 64, 'f32', 9))
    const short = { ...quantised, readRows: () => ({ values: new Uint8Array(9), scales: new Uint8Array(9) }) }
    expect(() => cpu.matrix({ ...rest, quantised: short }, type)).toThrow(/hold 9 bytes/)
    cpu.dispose()
  })

  test('the reference accepts rows of a file unchanged', () => {
    const source = randomSource(40, 96, 'f32', 4)
    const reference = createReferenceBackend()
    expect(product(reference, fromFile(type, source), type)).toEqual(product(reference, source, type))
  })
})

/** The source as a file of quantised rows would return it. */
function fromFile(type: QuantisedType, source: MatrixSource) {
  const { columns } = source
  const weights = weightsOf(source)
  const rowsOf = (start: number, end: number) =>
    quantiseRows(type, weights.subarray(start * columns, end * columns), columns)
  return {
    ...source,
    dtype: 'f32' as const,
    readRows: (start: number, end: number) => new Uint8Array(decodeRows(type, rowsOf(start, end), columns).buffer),
    quantised: { type, readRows: rowsOf },
  } satisfies MatrixSource
}

function product(backend: ReturnType<typeof createReferenceBackend>, source: MatrixSource, type: QuantisedType) {
  const { rows, columns } = source
  const capacity = capacityFor(3)
  const y = poisoned(backend, [5, rows])
  const x = backend.tensor([5, columns], normals(5 * columns, 8))
  const weight = backend.matrix(source, type)
  backend.record(capacity, (ops) => ops.linear([{ y, x, weight }])).run(raggedBatch(capacity, [3], [0], 1))
  return backend.readTensor(y, 0, 3 * rows).result()
}
