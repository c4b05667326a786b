/**
 * The `cuda` backend: the ops of backend.ts as CUDA kernels (kernels/cuda) and cuBLASLt products on one device and one
 * stream, with a second one for copies of states. Activations are f16, weights f16 or of fewer bits, the residual, statistics and sums f32, recurrent states f32 (or f16 on
 * request, rounded with dither). Used from one thread; owns everything it hands out.
 */
import { assert, SkeinError } from '../../errors.ts'
import type { Backend, Flight, Guessing, StateShape, Tensor } from '../backend.ts'
import { CudaDevice } from './device/device.ts'
import { Downloads } from './device/downloads.ts'
import type { DeviceInfo } from './driver/device-info.ts'
import { Gemm, type GemmCall } from './gemm/gemm.ts'
import type { KernelImages, KernelVariant } from './kernel/kernel.ts'
import type { LaunchListener } from './kinds/absent.ts'
import type { DriverKind } from './kinds/kind.ts'
import { copyBytes } from './linear/rounded-many.ts'
import { mostTiledTokens, tileScratchBytes } from './linear/rounded-tiles.ts'
import { CudaProgram } from './program.ts'
import {
  CudaHostTable,
  CudaMatrix,
  CudaTable,
  CudaTensor,
  downloadFloats,
  type TensorType,
  uploadHalves,
} from './resources.ts'
import { logBytes } from './state-log.ts'
import { CudaPenaltyPool, CudaStatePool } from './states.ts'
import { FEW_TOKENS, LONG_ROW } from './step/command.ts'
import { MAX_GUESSING_ROWS } from './step-graphs.ts'

/**
 * Steps of 7.2B in f16 (docs/dev/measurements.md, On a GPU). Those of 1.5B cost up to a third more. Of integers, those in q4.
 */
const GUESSING: Guessing = {
  rows: MAX_GUESSING_ROWS,
  keptRow: LONG_ROW - 1,
  keptEach: FEW_TOKENS,
  costs: [
    [1, 1],
    [2, 1.3],
    [4, 1.28],
    [8, 1.36],
    [16, 2.2],
    [32, 2.3],
    [64, 2.4],
    [128, 2.7],
    [256, 3.4],
  ],
  costsOfIntegers: [
    [1, 1],
    [2, 1.35],
    [4, 1.28],
    [8, 1.46],
    [16, 2.2],
    [32, 3],
    [64, 3.1],
    [128, 3.8],
    [256, 5.6],
  ],
}

export interface CudaOptions {
  /** Whose driver; CUDA's unless given. */
  readonly kind?: DriverKind
  /** Index as the driver counts, or a UUID as nvidia-smi -L prints it; 0 unless given. */
  readonly device?: number | string
  /** How the recurrent WKV states are held; f16 halves their memory and traffic. f32 unless given. */
  readonly wkv?: TensorType
  /** Most device memory to use; all that is free when absent. */
  readonly memoryBytes?: number
  /** Whether decode steps are replayed as graphs (the default) or launched kernel by kernel. */
  readonly graphs?: boolean
  /** Heads of the narrowest model whose f32 states have a log (state-log.ts), for tests, whose models are small. */
  readonly leastLogHeads?: number
}

export interface CudaBackend extends Backend {
  readonly device: CudaDevice
  /** Bytes that a program for steps of `maxTokens` needs for the matrices loaded so far, besides buffers and states. */
  scratchBytes(maxTokens: number): number
  /**
   * Begins to compile, on other threads, what is missing of the kernels that `build` will ask for: it is called with a backend
   * on which nothing runs. Returns how many are missing.
   */
  compileAhead(build: (backend: CudaBackend) => void): number
  /** Tunes the library's products that `build` will ask for and nobody has tuned; `onBegin` hears how many, if there are any. */
  tuneAhead(build: (backend: CudaBackend) => void, onBegin: (numProducts: number) => void): void
  /** Bytes that each of `numSlots` slots takes besides its RWKV-7 state: its log (state-log.ts). */
  logBytes(shape: StateShape, numSlots: number): number
}

export function createCudaBackend(options: CudaOptions = {}): CudaBackend {
  const { device: which = 0, wkv = 'f32', memoryBytes, graphs = true, leastLogHeads, kind } = options
  const device = CudaDevice.open({
    device: which,
    ...(memoryBytes === undefined ? {} : { memoryBytes }),
    ...(kind === undefined ? {} : { kind }),
  })
  return backendOn(device, wkv, graphs, leastLogHeads)
}

interface AbsentOptions {
  /** Hears of what is launched. */
  readonly onLaunch?: LaunchListener
  /** Gets the library's products of every size of step, by their plans' keys; kernels are then not named for all of them. */
  readonly products?: Map<string, GemmCall>
  /** What fits there decides which weights have copies, and so which kernels; anything fits unless given. */
  readonly memoryBytes?: number
}

/** The kernels that `build` asks for on a device like this one. */
export function kernelsOf(
  info: DeviceInfo,
  wkv: TensorType,
  build: (backend: CudaBackend) => void,
  { onLaunch, products, memoryBytes }: AbsentOptions = {},
): KernelVariant[] {
  const kernels: KernelVariant[] = []
  const images: KernelImages = {
    image(file, defines) {
      kernels.push([file, defines])
      return new Uint8Array(0)
    },
    compileAhead: () => 0,
    discard() {},
  }
  const roomy = { ...info, totalBytes: 2 ** 40 }
  const device = CudaDevice.absent(roomy, { images, ...(memoryBytes === undefined ? {} : { memoryBytes }) }, onLaunch)
  const backend = backendOn(device, wkv, false, undefined, products)
  try {
    build(backend)
    return kernels
  } finally {
    backend.dispose()
  }
}

function backendOn(
  device: CudaDevice,
  wkv: TensorType,
  graphs: boolean,
  leastLogHeads?: number,
  products?: Map<string, GemmCall>,
): CudaBackend {
  const gemm = openGemm(device, products)
  const downloads = new Downloads(device)
  let largestCopy = 0
  let hasRounded = false
  return {
    name: 'cuda',
    device,
    scratchBytes: (maxTokens) =>
      (hasRounded ? tileScratchBytes(device) : 0) + (maxTokens > mostTiledTokens(device) ? largestCopy : 0),
    compileAhead: (build) => device.compileAhead(kernelsAhead(device, wkv, build)),
    tuneAhead(build, onBegin) {
      const products = new Map<string, GemmCall>()
      kernelsAhead(device, wkv, build, products)
      gemm.tuneAhead(products, onBegin)
    },
    logBytes: (shape, numSlots) => logBytes(device, wkv, shape, numSlots, leastLogHeads),
    description: `${device.description}${wkv === 'f16' ? ', f16 states' : ''}`,
    guessing: GUESSING,
    drawsLater: true,
    tensor: (shape, values) => new CudaTensor(device, shape, 'f32', values),
    activation: (shape, values) => new CudaTensor(device, shape, 'f16', values),
    sideBySide: (count, numbers) => device.memory.sideBySide(count, 2 * numbers),
    readTensor: (tensor, start, count) => readTensor(downloads, tensor, start, count),
    writeTensor: (tensor, values) => writeTensor(device, tensor, values),
    matrix(source, type) {
      const matrix = new CudaMatrix(device, source, type)
      hasRounded ||= matrix.layout !== 'f16'
      largestCopy = Math.max(largestCopy, copyBytes({ ...matrix, type: matrix.layout }))
      return matrix
    },
    table: (source) => new CudaTable(device, source),
    hostTable: (source) => new CudaHostTable(device, source),
    statePool: (shape, numSlots) => new CudaStatePool(device, shape, numSlots, wkv, leastLogHeads),
    penaltyPool: (vocabSize, numSlots) => new CudaPenaltyPool(device, vocabSize, numSlots),
    record: (capacity, build) => new CudaProgram(device, gemm, capacity, build, graphs),
    heldBytes: () => device.memory.takenBytes,
    dispose() {
      gemm.dispose()
      device.dispose()
    },
  }
}

/** Those of a model that a device is about to get. One that does not fit will say so itself. */
function kernelsAhead(
  device: CudaDevice,
  wkv: TensorType,
  build: (backend: CudaBackend) => void,
  products?: Map<string, GemmCall>,
): KernelVariant[] {
  const memoryBytes = device.memory.budgetBytes
  try {
    return kernelsOf(device.info, wkv, build, { memoryBytes, ...(products === undefined ? {} : { products }) })
  } catch (error) {
    if (error instanceof SkeinError && error.code === 'out_of_memory') return []
    throw error
  }
}

/** Where there is no cuBLASLt the device is given back. */
function openGemm(device: CudaDevice, products?: Map<string, GemmCall>): Gemm {
  try {
    return new Gemm(device, products)
  } catch (error) {
    device.dispose()
    throw error
  }
}

function writeTensor(device: CudaDevice, tensor: Tensor, values: Float32Array): void {
  assert(tensor instanceof CudaTensor, 'a tensor of another backend')
  assert(values.length <= tensor.count, 'writeTensor beyond its tensor')
  if (tensor.type === 'f32') device.upload(tensor.address, values)
  else uploadHalves(device, tensor.address, values)
}

function readTensor(downloads: Downloads, tensor: Tensor, start = 0, count?: number): Flight<Float32Array> {
  assert(tensor instanceof CudaTensor, 'a tensor of another backend')
  const length = count ?? tensor.count - start
  assert(start >= 0 && start + length <= tensor.count, 'readTensor beyond its tensor')
  return downloadFloats(downloads, tensor, start, length)
}
