/** The sampler on cuda: one cluster of blocks a sample, over the whole vocabulary (sample.cu). */
import type { PenaltyPool, Tensor } from '../../backend.ts'
import {
  type Batch,
  type Capacity,
  maskWords,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleFloat,
  SampleInt,
} from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { PinnedBuffer } from '../device/staging.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import { Layout } from '../step/buffer.ts'
import type { Command, StepStream } from '../step/command.ts'
import { penaltiesOf, tensorOf } from '../step/operands.ts'

/** Blocks that share a sample; clusters came with capability 9. The same for every step: a sum depends on the shape. */
const CLUSTER = 8
/** Scores that a thread holds in registers, and the registers that leave room for them. */
const MAX_SCORES = 32
const REGISTERS = 64
const THREADS = [256, 512, 1024] as const
/** kLater of sample.cu: the launch of draws that are made later. */
const LATER = -1

/** How a vocabulary is spread over a cluster; without clusters one block reads its scores again and again. */
function shapeOf(vocabSize: number, hasClusters: boolean) {
  const cluster = hasClusters ? CLUSTER : 1
  const groups = Math.ceil(vocabSize / (4 * cluster))
  const threads = THREADS.find((count) => 4 * groups <= MAX_SCORES * count)
  if (!hasClusters || threads === undefined) return { CLUSTER: cluster, THREADS: 1024, SCORES: 0, BLOCKS: 1 }
  return { CLUSTER: cluster, THREADS: threads, SCORES: MAX_SCORES, BLOCKS: 65_536 / (REGISTERS * threads) }
}

export function sample(
  device: CudaDevice,
  capacity: Capacity,
  logits: Tensor,
  penalties: PenaltyPool,
  scratch: (count: number) => DevicePointer,
  numFlights: number,
): Command {
  const { vocabSize, counts, flags } = penaltiesOf(penalties)
  const shape = shapeOf(vocabSize, device.computeCapability[0] >= 9)
  const kernel = device.kernel('sample', 'sample', shape)
  // With a multiprocessor for each block, threads have room for the weights of several scores at once.
  const kernelOfFew = shape.CLUSTER > 1 ? device.kernel('sample', 'sample', { ...shape, BLOCKS: 1 }) : kernel
  const rows = tensorOf(logits, 'f32', capacity.logits * vocabSize)
  const adjusted = scratch(capacity.samples * vocabSize)
  const masks = new StepMasks(device, capacity, vocabSize, numFlights)
  /** `Sampling` of sample.cu. */
  const struct = ({ buffer }: StepStream) =>
    new StructBytes()
      .pointer(rows)
      .pointer(adjusted)
      .pointer(counts)
      .pointer(flags)
      .pointer(buffer.input('biasIds'))
      .pointer(buffer.input('biasValues'))
      .pointer(masks.address)
      .pointer(masks.hasCome)
      .pointer(buffer.output('sampled'))
      .pointer(buffer.output('sampledLogprob'))
      .pointer(buffer.output('topIds'))
      .pointer(buffer.output('topLogprobs'))
      .pointer(buffer.outputs.hostTokens.address)
      .i32(buffer.outputs.hostTokens.words)
      .i32(vocabSize)
      .bytes()
  /** By how many draws before it a draw waits for. */
  const sites = Array.from({ length: capacity.samples + 1 }, () => ({}))
  const later = {}
  const launch = (stream: StepStream, site: object, samples: number, depth: number) => {
    const options = { pdl: true, cluster: shape.CLUSTER }
    const grid = [samples * shape.CLUSTER, 1, 1] as const
    const args = () => [struct(stream), i32(depth)]
    const isFew = samples * shape.CLUSTER <= device.numSms
    stream.launch(site, isFew ? kernelOfFew : kernel, grid, shape.THREADS, args, options)
  }
  return {
    upload: (batch) => masks.upload(batch),
    uploadLater: (batch) => masks.uploadLater(batch),
    dispose: () => masks.dispose(),
    run(stream, { samples, waits }) {
      for (let depth = 0; depth <= waits; depth++) launch(stream, sites[depth]!, samples, depth)
    },
    runLater: (stream, samples) => launch(stream, later, samples, LATER),
  }
}

/** Most draws before it that a draw waits for, as depth_of of sample-scores.cuh counts them. */
export function waitsOf({ numSamples, sampleInts, sampleFloats }: Batch): number {
  let [most, depth] = [0, 0]
  for (let s = 0; s < numSamples; s++) {
    const isAfter = sampleInts[s * SAMPLE_INTS + SampleInt.after]! > 0
    depth = isAfter && penalises(sampleFloats, s * SAMPLE_FLOATS) ? depth + 1 : 0
    most = Math.max(most, depth)
  }
  return most
}

function penalises(floats: Float32Array, at: number): boolean {
  const { repetitionPenalty, presencePenalty, frequencyPenalty, penaltyDecay } = SampleFloat
  return (
    floats[at + repetitionPenalty] !== 1 ||
    floats[at + presencePenalty] !== 0 ||
    floats[at + frequencyPenalty] !== 0 ||
    floats[at + penaltyDecay] !== 1
  )
}

/** Copies of one step: ahead of it, and when the masks of its later draws have come. */
const COPIES = 2

/**
 * Masks of draws on their way to the device: one place there for all steps of a program, and page-locked images of it, made
 * when first needed. Those of draws that are made later follow their step. Steps without masks copy nothing.
 */
class StepMasks {
  /** [samples] i32, of each mask whether it has come; where a draw is made later, it is drawn if so. */
  readonly hasCome: DevicePointer
  readonly address: DevicePointer
  readonly #device: CudaDevice
  readonly #words: number
  readonly #at: number
  readonly #bytes: number
  readonly #numImages: number
  readonly #images: PinnedBuffer[] = []
  #numUploads = 0

  constructor(device: CudaDevice, { samples }: Capacity, vocabSize: number, numFlights: number) {
    this.#device = device
    this.#words = maskWords(vocabSize)
    const layout = new Layout()
    layout.section(samples)
    this.#at = layout.section(samples * this.#words).at
    this.#bytes = Math.max(16, layout.bytes)
    this.#numImages = COPIES * numFlights
    this.hasCome = device.alloc(this.#bytes)
    this.address = this.hasCome + BigInt(this.#at)
  }

  /** Ahead of a step; nothing where all its masks are of draws that are made later. */
  upload(batch: Batch): void {
    if (batch.numMasks > batch.numLater) this.#copy(batch)
  }

  /** Uploads the masks that have come for the draws that are left of the step. */
  uploadLater(batch: Batch): void {
    this.#copy(batch)
  }

  /** The image is that of the copy `numImages` before, whose step has run: no more steps are on their way. */
  #copy({ numMasks, masks, hasCome }: Batch): void {
    const at = this.#numUploads++ % this.#numImages
    const image = this.#images[at] ?? this.#device.pinned(this.#bytes)
    this.#images[at] = image
    const count = numMasks * this.#words
    new Int32Array(image.buffer, 0, numMasks).set(hasCome.subarray(0, numMasks))
    new Uint32Array(image.buffer, this.#at, count).set(masks.subarray(0, count))
    this.#device.uploadAsync(this.hasCome, image, this.#at + 4 * count)
  }

  dispose(): void {
    this.#device.free(this.hasCome)
    for (const image of this.#images) image.dispose()
  }
}
