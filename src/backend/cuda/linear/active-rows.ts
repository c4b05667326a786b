/**
 * A matrix of fewer bits turned round at load (active-rows.cu), for a product whose inputs are mostly zero: what meets
 * zeros need not be read.
 */
import { assert } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import type { HeldMatrix } from '../resources.ts'
import { LAYOUTS, rowBytesOf } from '../rounded-matrix.ts'
import { launchOnce } from '../source-rows.ts'

const THREADS = 256
/** Lanes to a part of a row (quant.cuh). */
const LANES = 4

export interface TurnedMatrix {
  /** u8 [columns, rows] */
  readonly address: DevicePointer
  /** Of integers f16 [groups, 1 or 2, rows]; of fp8 those of the matrix itself, f32 [rows]. */
  readonly scales: DevicePointer
  dispose(): void
}

/** On an H200 one row was faster so than by reading all of it: 7.2B (docs/dev/kernels-log.md 57 and 61). */
export function isWorthTurning({ layout, rows }: HeldMatrix): boolean {
  return (layout === 'i8' || layout === 'q4' || layout === 'nf4' || layout === 'fp8') && rows >= 4096
}

/** What turning it takes. Its rows are whole parts. */
export function turnedBytes({ rows, columns, layout }: HeldMatrix): number {
  return layout === 'f16' ? 0 : rows * (columns + rowBytesOf(layout, columns).scales)
}

export function turnedMatrix(device: CudaDevice, matrix: HeldMatrix): TurnedMatrix {
  const { rows, columns, layout } = matrix
  assert(layout !== 'f16' && matrix.scales !== null, 'a matrix of f16 turned round as one of fewer bits')
  const defines = { QUANT: LAYOUTS[layout].code }
  const launch = (name: string, of: number, to: DevicePointer, from: DevicePointer) =>
    launchOnce(device, device.kernel('active-rows', name, defines), Math.ceil(of / THREADS), [
      to,
      from,
      i32(rows),
      i32(columns),
    ])
  const address = device.alloc(rows * columns)
  const lanes = LANES * Math.ceil(columns / LAYOUTS[layout].partInputs)
  launch('turn_codes', rows * lanes, address, matrix.address)
  if (layout === 'fp8') return { address, scales: matrix.scales, dispose: () => device.free(address) }
  const bytes = rows * rowBytesOf(layout, columns).scales
  const scales = device.alloc(bytes)
  launch('turn_scales', bytes / 2, scales, matrix.scales)
  const dispose = () => {
    device.free(address)
    device.free(scales)
  }
  return { address, scales, dispose }
}
