/** A checkpoint's rows on their way to the device: in blocks, each checked for its length. Knows no layout. */
import { SkeinError } from '../../errors.ts'
import type { MatrixSource, SourceType } from '../backend.ts'
import { NativeArena } from './arena.ts'
import type { CudaDevice } from './device.ts'
import type { Kernel } from './kernel.ts'
import type { DevicePointer, KernelArg } from './kernel-args.ts'

export const SOURCE_BYTES: Readonly<Record<SourceType, number>> = { f32: 4, f16: 2, bf16: 2 }
/** Values of SOURCE in convert.cu, quantise.cu and fp8.cu, and of TABLE_TYPE in embed.cu. */
export const SOURCE_CODES: Readonly<Record<SourceType, number>> = { f32: 0, f16: 1, bf16: 2 }
/** Bytes uploaded at a time. */
const BLOCK_BYTES = 16 << 20

function blockRows(rowBytes: number): number {
  return Math.max(1, Math.floor(BLOCK_BYTES / rowBytes))
}

/** Ranges of rows of so many bytes that make up a block each. */
export function* rowBlocks(
  rows: number,
  rowBytes: number,
): Generator<[start: number, end: number]> {
  const step = blockRows(rowBytes)
  for (let start = 0; start < rows; start += step) yield [start, Math.min(start + step, rows)]
}

export function checkBytes(
  { name }: MatrixSource,
  start: number,
  end: number,
  { length }: Uint8Array,
  rowBytes: number,
): void {
  const expected = (end - start) * rowBytes
  if (length !== expected)
    throw new SkeinError(
      'corrupt_weights',
      `${name}: rows ${start} to ${end} hold ${length} bytes, expected ${expected}`,
    )
}

/** The rows of a source in blocks. */
export function* readBlocks(
  source: MatrixSource,
): Generator<[start: number, end: number, values: Uint8Array]> {
  const rowBytes = source.columns * SOURCE_BYTES[source.dtype]
  for (const [start, end] of rowBlocks(source.rows, rowBytes)) {
    const values = source.readRows(start, end)
    checkBytes(source, start, end, values, rowBytes)
    yield [start, end, values]
  }
}

/** Calls `each` with every block of a source's rows in device memory, in their own type. */
export function eachBlock(
  device: CudaDevice,
  source: MatrixSource,
  each: (block: DevicePointer, start: number, end: number) => void,
): void {
  const rowBytes = source.columns * SOURCE_BYTES[source.dtype]
  const scratch = device.alloc(rowBytes * Math.min(source.rows, blockRows(rowBytes)))
  for (const [start, end, values] of readBlocks(source)) {
    device.upload(scratch, values)
    each(scratch, start, end)
  }
  device.free(scratch)
}

/** One launch at load, outside any step. */
export function launchOnce(
  device: CudaDevice,
  kernel: Kernel,
  blocks: number,
  values: readonly KernelArg[],
  threads = 256,
): void {
  const arena = new NativeArena()
  device.launch(kernel, [blocks, 1, 1], [threads, 1, 1], 0, device.args(values, arena))
  arena.dispose()
}
