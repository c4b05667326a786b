/** The level of AMX multiplies many tokens by tile registers; no bit may differ from AVX-512's. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { PACKED_BLOCKS } from '../../src/backend/quantised.ts'
import type { PackedType, QuantisedType } from '../../src/backend/weight-types.ts'
import { packedSource } from '../helpers/packed-source.ts'
import { LEVELS, multiplied, normals, type Product, randomSource } from './kit.ts'

const QUANTISED: readonly QuantisedType[] = ['i8', 'q4', 'nf4']
const PACKED = Object.keys(PACKED_BLOCKS) as PackedType[] // Object.keys loses the key type

interface Case extends Product {
  readonly type: QuantisedType | PackedType
}

function matrix(backend: Backend, { type, rows, columns }: Case) {
  const isPacked = (any: Case['type']): any is PackedType => any in PACKED_BLOCKS
  if (isPacked(type)) return backend.matrix(packedSource(type, rows, columns), type)
  return backend.matrix(randomSource(rows, columns, 'f32', rows + columns), type)
}

const multiply = (backend: Backend, c: Case, x: Float32Array) =>
  multiplied(backend, { ...c, hasBias: true }, matrix(backend, c), x)

describe.runIf(LEVELS.includes('amx'))('products by tiles', () => {
  let tiles: Backend
  let vectors: Backend
  beforeAll(() => {
    tiles = createCpuBackend({ isa: 'amx', threads: 2 })
    vectors = createCpuBackend({ isa: 'avx512', threads: 2 })
  })
  afterAll(() => {
    tiles.dispose()
    vectors.dispose()
  })

  async function expectSame(c: Case, x = normals(c.tokens * c.columns, c.tokens + c.columns)) {
    const bits = (y: Float32Array) => new Uint32Array(y.buffer)
    const [found, wanted] = [await multiply(tiles, c, x), await multiply(vectors, c, x)]
    const at = bits(found).findIndex((value, i) => value !== bits(wanted)[i])
    expect(at === -1 ? null : { ...c, at, found: found[at], wanted: wanted[at] }).toBeNull()
  }

  const widths = (type: Case['type']) => {
    if (QUANTISED.includes(type as QuantisedType))
      return [
        [64, 64],
        [1, 1],
        [65, 31],
        [200, 127],
        [130, 1300],
      ] as const
    const block = PACKED_BLOCKS[type as PackedType].elements
    return [
      [64, block],
      [1, 2 * block],
      [201, 3 * block],
      [130, 5 * 256],
    ] as const
  }

  test.each([...QUANTISED, ...PACKED])('%s: all shapes and numbers of tokens', async (type) => {
    for (const [rows, columns] of widths(type))
      for (const tokens of [1, 2, 7, 16, 31, 32, 33, 47, 64, 70]) await expectSame({ type, rows, columns, tokens })
  })

  test.each([...QUANTISED, ...PACKED])('%s: the largest integers, zeros, and what is not finite', async (type) => {
    const c = { type, rows: 70, columns: 512, tokens: 40, epilogue: 'add' } as const
    const x = normals(c.tokens * c.columns, 3)
    for (let i = 0; i < c.columns; i++) {
      x[i] = 1
      x[c.columns + i] = -1
      x[2 * c.columns + i] = i % 2 === 0 ? 1 : -1
      x[3 * c.columns + i] = 0
      x[4 * c.columns + i] = 1e-38
      x[5 * c.columns + i] = 3e38
    }
    x[6 * c.columns + 40] = Number.NaN
    x[7 * c.columns + 500] = Number.POSITIVE_INFINITY
    await expectSame(c, x)
  })
})
