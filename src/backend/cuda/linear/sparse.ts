/**
 * The product after a relu² on cuda, for one token: most of its inputs are zero, and what they would be multiplied with
 * need not be read. That takes a transposed copy of the matrix, which is made as long as memory is plentiful.
 */

import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { transpose } from '../source-rows.ts'
import type { StepStream } from '../step/command.ts'
import type { Product } from './product.ts'

const THREADS = 256
/** Of the memory that is free, beyond what a step may still ask for, copies take no more than this share. */
const MEMORY_SHARE = 1 / 2
const RESERVE_BYTES = 512 << 20

/** What the copies of a recording may take, all together. States and buffers have theirs before the first is asked for. */
export class CopyBudget {
  readonly #device: CudaDevice
  #left: number | null = null

  constructor(device: CudaDevice) {
    this.#device = device
  }

  take(bytes: number): boolean {
    this.#left ??= MEMORY_SHARE * (this.#device.freeBytes() - RESERVE_BYTES)
    if (bytes > this.#left) return false
    this.#left -= bytes
    return true
  }
}

interface SparseProduct {
  /** The matrix as [columns, rows]. */
  readonly transposed: DevicePointer
  run(stream: StepStream): void
  dispose(): void
}

/** Null where the product is not one of these, or memory is short. */
export function sparseProduct(
  device: CudaDevice,
  product: Product,
  before: readonly Product[],
  budget: CopyBudget,
): SparseProduct | null {
  const { x, y, weight, type, rows, columns, epilogue, bias } = product
  const isAfterRelu = before.some((one) => one.epilogue === 'relu2' && one.y.address === x)
  if (!isAfterRelu || epilogue !== 'add' || bias !== null || y.type !== 'f32') return null
  const bytes = 2 * rows * columns
  if (type !== 'f16' || !budget.take(bytes)) return null
  const transposed = transpose(device, weight, rows, columns)
  // Whole sectors to a block, and as many blocks as multiprocessors.
  const COLUMNS = rows >= 4096 ? 32 : 16
  const kernel = device.kernel('linear-sparse', 'linear_sparse', { COLUMNS })
  const site = {}
  return {
    transposed,
    run: (stream) =>
      stream.launch(site, kernel, [Math.ceil(rows / COLUMNS), 1, 1], THREADS, () => [
        y.address,
        x,
        transposed,
        i32(columns),
        i32(rows),
      ]),
    dispose: () => device.free(transposed),
  }
}
