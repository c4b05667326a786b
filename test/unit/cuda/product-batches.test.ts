import { expect, test } from 'vitest'
import type { LinearJob, Ops } from '../../../src/backend/backend.ts'
import { kernelsOf } from '../../../src/backend/cuda/cuda.ts'
import { CARDS, infoOf } from '../../../src/backend/cuda/driver/cards.ts'
import { gemmCalls } from '../../../src/backend/cuda/linear/linear.ts'
import { type Product, productOf } from '../../../src/backend/cuda/linear/product.ts'
import type { CudaTensor } from '../../../src/backend/cuda/resources.ts'
import { shapesOnly } from '../../../src/bench/random-model.ts'
import { loadRwkv7 } from '../../../src/model/rwkv7.ts'

/** Only the fields that are read. */
function product(w: number, x: number, y: number, given: Partial<Product> = {}): Product {
  const tensor = { address: BigInt(y), type: 'f16' } as CudaTensor
  const sizes = { rows: 64, columns: 32, epilogue: 'none', type: 'f16' } as const
  const rest = { scales: null, bias: null }
  return { ...sizes, ...rest, y: tensor, x: BigInt(x), weight: BigInt(w), ...given }
}

const [W, X, Y] = [4096, 2048, 1024]
const at = (i: number, given?: Partial<Product>) => product(i * W, i * X, i * Y, given)
const shapes = (products: readonly Product[]) =>
  gemmCalls(products, 5).map(({ batch = 1, strides }) => [batch, strides?.w, strides?.x, strides?.y])

test('only products at constant distances become one call', () => {
  const one = [1, undefined, undefined, undefined]
  expect(shapes([at(1), at(2), at(3)])).toEqual([[3, 2048, 1024, 512]])
  expect(shapes([at(1), at(2), at(3), at(5), at(6, { rows: 128 })])).toEqual([[3, 2048, 1024, 512], one, one])
  expect(shapes([at(1), at(2, { epilogue: 'add' }), at(3, { columns: 64 })])).toEqual([one, one, one])
  expect(shapes([at(3), at(2)])).toEqual([one, one])
  // Like w, r and k: the inputs of the second pair are elsewhere.
  expect(shapes([at(1), product(2 * W, 3 * X, 2 * Y), at(3)])).toEqual([[2, 2048, 2048, 512], one])
  expect(shapes([at(1), product(2 * W, 2 ** 40, 2 * Y)])).toEqual([one, one])
})

test('a call starts with the first operands', () => {
  const [call] = gemmCalls([at(1, { epilogue: 'add' }), at(2, { epilogue: 'add' })], 5)
  expect(call).toMatchObject({ m: 64, n: 5, k: 32, w: 4096n, x: 2048n, y: 1024n, beta: 1, batch: 2 })
})

test('r, k and v of every layer of a model are one call', () => {
  const capacity = { tokens: 576, rows: 8, logits: 8, samples: 8 }
  const batches: (number | undefined)[][] = []
  kernelsOf(infoOf(CARDS.h200), 'f32', (device) => {
    // Something else is put between any two.
    let n = 0
    const apart = <A extends unknown[], R>(make: (...args: A) => R) => {
      return (...args: A): R => {
        device.device.alloc(4e6 * (1 + (n++ % 3)))
        return make(...args)
      }
    }
    const backend = { ...device, matrix: apart(device.matrix), activation: apart(device.activation) }
    const model = loadRwkv7(shapesOnly('0.4b'), backend, {})
    const linear = (jobs: readonly LinearJob[]) => {
      const products = jobs.map((job) => productOf(job, capacity.tokens))
      const large = products.filter(({ rows, columns }) => rows === columns)
      if (large.length > 1) batches.push(gemmCalls(large, 576).map(({ batch }) => batch))
    }
    const ops = new Proxy({ linear }, { get: (own, name) => (name === 'linear' ? own.linear : () => {}) })
    model.forward(ops as unknown as Ops, backend.statePool(model.stateShape, 1), capacity)
  })
  expect(batches).toEqual(Array.from({ length: 24 }, () => [3]))
})
