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
/** What a step may still ask for. */
const RESERVE_BYTES = 512 << 20

/** What copies of a kind may take in a recording, all together: a share of the memory that is free otherwise. */
export class CopyBudget {
  readonly #device: CudaDevice
  readonly #share: number
  readonly #pending: number
  #left: number | null = null

  /** `pending`: of what is taken already, the share that others may still ask for. */
  constructor(device: CudaDevice, share: number, pending = 0) {
    this.#device = device
    this.#share = share
    this.#pending = pending
  }

  take(bytes: number): boolean {
    const { memory } = this.#device
    this.#left ??= this.#share * (this.#device.freeBytes() - RESERVE_BYTES - this.#pending * memory.takenBytes)
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
