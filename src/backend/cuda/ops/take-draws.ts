/** The first kernel of a step: tokens that the step before drew, in place of their names (take-draws.cu). */

import type { CudaDevice } from '../device/device.ts'
import type { Kernel } from '../kernel/kernel.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { StepStream } from '../step/command.ts'

const THREADS = 256
const SITE = {}

export class TakeDraws {
  readonly #kernel: Kernel

  constructor(device: CudaDevice) {
    this.#kernel = device.kernel('take-draws', 'take_draws')
  }

  run(stream: StepStream): void {
    stream.launch(SITE, this.#kernel, [1, 1, 1], THREADS, () => [struct(stream), stream.buffer.fetched()])
  }
}

/** `TakeDraws` of take-draws.cu. */
function struct({ buffer }: StepStream): Uint8Array {
  return new StructBytes()
    .pointer(buffer.input('tokens'))
    .pointer(buffer.input('slots'))
    .pointer(buffer.input('sampleSlot'))
    .pointer(buffer.output('sampled'))
    .pointer(buffer.input('stopStarts'))
    .pointer(buffer.input('stopIds'))
    .bytes()
}
