/**
 * Copies from the device that nobody waits for: into page-locked memory, in order with the stream, and from there when
 * they are over. Page-locked memory is slow to make, so it is kept for the next. Knows nothing of what is copied.
 */
import type { Flight } from '../../flight.ts'
import type { DevicePointer } from '../kernel/args.ts'
import type { CudaDevice } from './device.ts'
import { CudaEvent } from './event.ts'
import type { PinnedBuffer } from './staging.ts'

const LEAST_BYTES = 1 << 16

interface Place {
  buffer: PinnedBuffer
  readonly arrived: CudaEvent
}

export class Downloads {
  readonly #device: CudaDevice
  readonly #free: Place[] = []

  constructor(device: CudaDevice) {
    this.#device = device
  }

  /** Reads `bytes` bytes at an address, in order with the stream. */
  start(from: DevicePointer, bytes: number): Flight<Uint8Array<ArrayBuffer>> {
    const place = this.#take(bytes)
    this.#device.downloadAsync(place.buffer, from, bytes)
    place.arrived.record()
    let values: Uint8Array<ArrayBuffer> | null = null
    const { arrived } = place
    return {
      get isDone() {
        return values !== null || arrived.isOver
      },
      result: () => {
        if (values !== null) return values
        arrived.wait()
        values = new Uint8Array(place.buffer.buffer, 0, bytes).slice()
        this.#free.push(place)
        return values
      },
    }
  }

  #take(bytes: number): Place {
    const device = this.#device
    const place = this.#free.pop()
    if (place === undefined) {
      const arrived = new CudaEvent(device)
      device.atEnd(() => arrived.dispose())
      return { buffer: device.pinned(sizeFor(bytes)), arrived }
    }
    if (place.buffer.bytes < bytes) {
      place.buffer.dispose()
      place.buffer = device.pinned(sizeFor(bytes))
    }
    return place
  }
}

function sizeFor(bytes: number): number {
  return Math.max(LEAST_BYTES, 2 ** Math.ceil(Math.log2(bytes)))
}
