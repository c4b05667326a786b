/** A mark on the stream of a device: whether everything before it has run, and a wait until it has. */
import type { Pointer } from '../../ffi.ts'
import type { CudaDevice } from './device.ts'

/** CU_EVENT_DISABLE_TIMING */
const NO_TIMING = 2

export class CudaEvent {
  readonly #device: CudaDevice
  readonly #event: Pointer

  constructor(device: CudaDevice) {
    const out = new BigUint64Array(1)
    device.driver.call('cuEventCreate', out, NO_TIMING)
    this.#device = device
    this.#event = out[0]!
  }

  /** Moves the mark to the present end of the device's stream, or of its stream for copies. */
  record(stream = this.#device.stream): void {
    this.#device.driver.call('cuEventRecord', this.#event, stream)
  }

  /** Makes later work on a stream of `device` run after the mark. */
  holdBack(device: CudaDevice, stream = device.stream): void {
    device.driver.call('cuStreamWaitEvent', stream, this.#event, 0)
  }

  get isOver(): boolean {
    const { driver } = this.#device
    const status = driver.functions.cuEventQuery(this.#event)
    if (status === driver.words.statuses.notReady) return false
    if (status !== 0) throw driver.error(status, 'asking the device')
    return true
  }

  /** Errors of kernels surface here. */
  wait(): void {
    const { driver } = this.#device
    const status = driver.functions.cuEventSynchronize(this.#event)
    if (status !== 0) throw driver.error(status, 'waiting for the device')
  }

  dispose(): void {
    this.#device.driver.call('cuEventDestroy_v2', this.#event)
  }
}
