/**
 * Copies in f16 of a linear's matrices of fewer bits on cuda, for steps of many tokens: the rate of products limits these,
 * and fewer bits cost time. Made at load as long as memory is plentiful.
 */
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { isBlockLayout, LAYOUTS, type Layout } from '../rounded-matrix.ts'
import { launchOnce } from '../source-rows.ts'
import type { Product } from './product.ts'
import { dequantiseBlocks } from './rounded-many.ts'
import { leastTiledTokens } from './rounded-tiles.ts'
import type { CopyBudget } from './sparse.ts'

/** Smaller matrices would be left to low-rank.cu and linear-few.cu. */
const LEAST_ROWS = 513
/** A linear of fewer weights takes less time as f16 than by tiles of any number of tokens. */
const SMALL_WEIGHTS = 20 << 20
/** Any linear does from so many tokens on. Both measured on an H200 (docs/dev/kernels-log.md 87). */
const MANY_TOKENS = 193
/** From so many multiplications on the library's products of e4m3 take less. */
const FP8_PRODUCTS = 8e9
/** Of `Step` (common.cuh), which dequantise does not read. */
const STEP_BYTES = 112

/** What the copies of a recording share. */
export interface HalvesShared {
  readonly halves: CopyBudget
  /** The copy of each matrix that has one, by its address. */
  readonly halved: Map<DevicePointer, DevicePointer>
}

interface Halves {
  /** The products, with these copies. */
  readonly products: readonly Product[]
  /** Whether the copies are the way for so many tokens. */
  serves(tokens: number): boolean
  dispose(): void
}

type Shape = Pick<Product, 'type' | 'rows' | 'columns'>

/** The numbers of tokens for which copies of a linear's matrices that are not f16 are the way. */
export function tokensOfHalves(rounded: readonly Shape[]): { readonly least: number; readonly most: number } {
  const weights = weightsOf(rounded)
  const isFp8 = rounded.some(({ type }) => type === 'fp8')
  return {
    least: weights < SMALL_WEIGHTS ? 0 : MANY_TOKENS,
    most: isFp8 ? FP8_PRODUCTS / weights : Number.POSITIVE_INFINITY,
  }
}

function weightsOf(shapes: readonly Shape[]): number {
  return shapes.reduce((sum, { rows, columns }) => sum + rows * columns, 0)
}

function isFit({ type, rows, columns }: Shape): boolean {
  return type !== 'f16' && !isBlockLayout(type) && rows >= LEAST_ROWS && columns % LAYOUTS[type].partInputs === 0
}

/** Null where tokens are never so many, or memory is short. */
export function halvesOf(
  device: CudaDevice,
  products: readonly Product[],
  mostTokens: number,
  { halves: budget, halved }: HalvesShared,
): Halves | null {
  const rounded = products.filter(({ type }) => type !== 'f16')
  if (rounded.length === 0 || !rounded.every(isFit)) return null
  const weights = weightsOf(rounded)
  const range = tokensOfHalves(rounded)
  const [least, most] = [Math.max(leastTiledTokens(device), range.least), Math.min(mostTokens, range.most)]
  if (least > most) return null
  if (!budget.take(2 * weights)) return null
  const memory = device.alloc(2 * weights)
  let next = memory
  // Side by side, so that the library can make products of equal size at once.
  const copies = products.map((product): Product => {
    if (product.type === 'f16') return product
    const weight = next
    next += BigInt(2 * product.rows * product.columns)
    dequantise(device, product, product.type, weight)
    halved.set(product.weight, weight)
    return { ...product, type: 'f16', weight, scales: null }
  })
  return {
    products: copies,
    serves: (tokens) => tokens >= least && tokens <= most,
    dispose: () => device.free(memory),
  }
}

function dequantise(device: CudaDevice, product: Product, type: Layout, to: DevicePointer): void {
  const { weight, scales, rows, columns } = product
  const kernel = device.kernel('quantise', 'dequantise', { QUANT: LAYOUTS[type].code, SOURCE: 0 })
  const args = [new Uint8Array(STEP_BYTES), to, weight, scales!, i32(rows), i32(columns)]
  launchOnce(device, kernel, dequantiseBlocks(rows * columns), args)
}
