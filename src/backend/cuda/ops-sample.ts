/** The sampler on cuda: one block a sample, over the whole vocabulary (sample.cu). */
import type { Capacity, PenaltyPool, Tensor } from '../backend.ts'
import type { Command, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { DevicePointer } from './kernel-args.ts'
import { penaltiesOf, tensorOf } from './operands.ts'
import { StructBytes } from './struct-bytes.ts'

const THREADS = 1024

export function sample(
  device: CudaDevice,
  capacity: Capacity,
  logits: Tensor,
  penalties: PenaltyPool,
  scratch: (count: number) => DevicePointer,
): Command {
  const { vocabSize, counts, flags } = penaltiesOf(penalties)
  const kernel = device.kernel('sample', 'sample')
  const rows = tensorOf(logits, 'f32', capacity.logits * vocabSize)
  const adjusted = scratch(capacity.samples * vocabSize)
  /** `Sampling` of sample.cu. */
  const struct = ({ buffer }: StepStream) =>
    new StructBytes()
      .pointer(rows)
      .pointer(adjusted)
      .pointer(counts)
      .pointer(flags)
      .pointer(buffer.input('biasIds'))
      .pointer(buffer.input('biasValues'))
      .pointer(buffer.output('sampled'))
      .pointer(buffer.output('sampledLogprob'))
      .pointer(buffer.output('topIds'))
      .pointer(buffer.output('topLogprobs'))
      .i32(vocabSize)
      .bytes()
  const site = {}
  return {
    run: (stream, { samples }) =>
      stream.launch(site, kernel, [samples, 1, 1], THREADS, () => [struct(stream)]),
  }
}
