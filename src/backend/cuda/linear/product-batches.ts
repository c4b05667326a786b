/**
 * Which products of a linear are one call of the library: neighbours of one shape whose operands lie a constant distance
 * apart, as those of r, k and v do. One launch in place of several, and one end at which multiprocessors run out of work.
 * Knows no kernel.
 */
import type { GemmCall } from '../gemm/gemm.ts'
import type { Product } from './product.ts'

/** Elements between inputs or outputs: tuning allocates as many. */
const MAX_STRIDE = 2 ** 26

interface Strides {
  readonly w: number
  readonly x: number
  readonly y: number
}

/** The calls that make these f16 products for `n` tokens. */
export function gemmCalls(products: readonly Product[], n: number): GemmCall[] {
  const calls: GemmCall[] = []
  for (let first = 0, next = 0; first < products.length; first = next) {
    const strides = stridesBetween(products[first]!, products[first + 1])
    next = first + 1
    if (strides !== null) while (continues(products, next, strides)) next++
    calls.push(gemmCall(products[first]!, n, next - first, strides))
  }
  return calls
}

function continues(products: readonly Product[], next: number, strides: Strides): boolean {
  const found = stridesBetween(products[next - 1]!, products[next])
  return found !== null && found.w === strides.w && found.x === strides.x && found.y === strides.y
}

/** From one product's operands to the next one's, where the library could make both at once. */
function stridesBetween(one: Product, next: Product | undefined): Strides | null {
  if (next === undefined || next.rows !== one.rows || next.columns !== one.columns) return null
  if (next.y.type !== one.y.type || betaOf(next) !== betaOf(one)) return null
  const size = one.y.type === 'f32' ? 4n : 2n
  const strides = {
    w: Number((next.weight - one.weight) / 2n),
    x: Number((next.x - one.x) / 2n),
    y: Number((next.y.address - one.y.address) / size),
  }
  const isNear = strides.x > 0 && strides.x <= MAX_STRIDE && strides.y <= MAX_STRIDE
  return strides.w > 0 && strides.y > 0 && isNear ? strides : null
}

function betaOf({ epilogue }: Product): 0 | 1 {
  return epilogue === 'add' ? 1 : 0
}

function gemmCall(product: Product, n: number, batch: number, strides: Strides | null): GemmCall {
  const { rows, columns, weight, x, y } = product
  const call = { m: rows, n, k: columns, w: weight, x, y: y.address, outType: y.type }
  const batched = batch > 1 && strides !== null ? { batch, strides } : {}
  return { ...call, beta: betaOf(product), ...batched }
}
