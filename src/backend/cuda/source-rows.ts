/** A checkpoint's rows on their way to the device, and launches at load. Knows no layout. */

import { blockRows, readBlocks, SOURCE_BYTES } from '../source-rows.ts'
import type { MatrixSource, SourceType } from '../weight-types.ts'
import type { CudaDevice } from './device/device.ts'
import { NativeArena } from './driver/arena.ts'
import { type DevicePointer, i32, type KernelArg } from './kernel/args.ts'
import type { Kernel } from './kernel/kernel.ts'

/** Values of SOURCE in convert.cu, quantise.cu and fp8.cu, and of TABLE_TYPE in embed.cu. */
export const SOURCE_CODES: Readonly<Record<SourceType, number>> = { f32: 0, f16: 1, bf16: 2 }

/** Calls `each` with every block of a source's rows in device memory, in their own type; once, of none, where nothing runs. */
export function eachBlock(
  device: CudaDevice,
  source: MatrixSource,
  each: (block: DevicePointer, start: number, end: number) => void,
): void {
  const rowBytes = source.columns * SOURCE_BYTES[source.dtype]
  const scratch = device.alloc(rowBytes * Math.min(source.rows, blockRows(rowBytes)))
  if (device.isAbsent) each(scratch, 0, 0)
  else
    for (const [start, end, values] of readBlocks(source)) {
      device.upload(scratch, values)
      each(scratch, start, end)
    }
  device.free(scratch)
}

/** Rows and columns that a block of `transpose` turns. */
const TILE = 32

/** An f16 matrix turned round, in memory of its own. */
export function transpose(device: CudaDevice, from: DevicePointer, rows: number, columns: number): DevicePointer {
  const to = device.alloc(2 * rows * columns)
  const kernel = device.kernel('convert', 'transpose', { SOURCE: SOURCE_CODES.f16 })
  const arena = new NativeArena()
  const args = device.args([to, from, i32(rows), i32(columns)], arena)
  const grid = [Math.ceil(columns / TILE), Math.ceil(rows / TILE), 1] as const
  device.launch(kernel, grid, [256, 1, 1], 0, args)
  arena.dispose()
  return to
}

/** One launch at load, outside any step. */
export function launchOnce(device: CudaDevice, kernel: Kernel, blocks: number, values: readonly KernelArg[]): void {
  const arena = new NativeArena()
  device.launch(kernel, [blocks, 1, 1], [256, 1, 1], 0, device.args(values, arena))
  arena.dispose()
}
