/** The sampler on cuda: one cluster of blocks a sample, over the whole vocabulary (sample.cu). */
import type { Capacity, PenaltyPool, Tensor } from '../backend.ts'
import type { Command, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import type { DevicePointer } from './kernel-args.ts'
import { penaltiesOf, tensorOf } from './operands.ts'
import { StructBytes } from './struct-bytes.ts'

const THREADS = 1024
/** Blocks that share a sample while all samples of a step fit on the device at once; clusters came with capability 9. */
const CLUSTERS = [8, 4, 2, 1] as const

export function sample(
  device: CudaDevice,
  capacity: Capacity,
  logits: Tensor,
  penalties: PenaltyPool,
  scratch: (count: number) => DevicePointer,
): Command {
  const { vocabSize, counts, flags } = penaltiesOf(penalties)
  const hasClusters = device.computeCapability[0] >= 9
  const variants = CLUSTERS.filter((size) => size === 1 || hasClusters).map((CLUSTER) => ({
    cluster: CLUSTER,
    kernel: device.kernel('sample', 'sample', { CLUSTER }),
  }))
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
    run(stream, { samples }) {
      const { cluster, kernel } = variants.find(
        (variant) => variant.cluster === 1 || samples * variant.cluster <= device.numSms,
      )!
      const grid = [samples * cluster, 1, 1] as const
      stream.launch(site, kernel, grid, THREADS, () => [struct(stream)], { pdl: true, cluster })
    },
  }
}
