/** Time on the device, by events on a stream. Knows nothing of what is timed. */
import type { Pointer } from '../../ffi.ts'
import type { CudaDriver } from '../driver/driver.ts'

/**
 * Microseconds of each of `repeats` runs of what `run` puts on the stream, ascending. `before` puts work there first
 * that is not timed: it hides the launch of what follows, and can empty the cache.
 */
export function timeOnStream(
  driver: CudaDriver,
  stream: Pointer,
  run: () => void,
  repeats: number,
  before: () => void,
): number[] {
  const pairs = Array.from({ length: repeats }, () => [newEvent(driver), newEvent(driver)] as const)
  try {
    for (const [start, end] of pairs) {
      before()
      driver.call('cuEventRecord', start, stream)
      run()
      driver.call('cuEventRecord', end, stream)
    }
    driver.call('cuStreamSynchronize', stream)
    return pairs.map(([start, end]) => elapsed(driver, start, end)).sort((a, b) => a - b)
  } finally {
    // A failure of these would hide the one that led here.
    for (const event of pairs.flat()) driver.functions.cuEventDestroy_v2(event)
  }
}

function newEvent(driver: CudaDriver): Pointer {
  const out = new BigUint64Array(1)
  driver.call('cuEventCreate', out, 0)
  return out[0]!
}

function elapsed(driver: CudaDriver, start: Pointer, end: Pointer): number {
  const milliseconds = new Float32Array(1)
  driver.call('cuEventElapsedTime', milliseconds, start, end)
  return 1000 * milliseconds[0]!
}
