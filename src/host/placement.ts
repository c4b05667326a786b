/**
 * Places a model on one device, or splits its layers over several, and chooses the size of its steps. Weights are
 * loaded here, because the memory that they leave determines how many sequences fit. It knows no files besides the
 * checkpoint, and no engine.
 */
import type { Backend, Connect, Link, Tensor } from '../backend/backend.ts'
import type { CudaBackend } from '../backend/cuda/cuda.ts'
import { PeerLink } from '../backend/cuda/peer.ts'
import { valuesOf } from '../backend/reference/tensors.ts'
import { assert } from '../errors.ts'
import { describeCheckpoint } from '../model/formats/describe.ts'
import type { Checkpoint } from '../model/formats/format.ts'
import type { LayerRange, Model } from '../model/model.ts'
import { modelBytes, splitLayers } from '../model/run/layer-split.ts'
import { loadModel } from '../model/run/load-model.ts'
import { keptRowOf, ModelRunner } from '../model/run/model-runner.ts'
import { joinStages, type Stage } from '../model/run/pipeline.ts'
import { type GuessChoice, sparesOf } from '../model/run/speculate-choice.ts'
import type { WeightOptions } from '../model/weights.ts'
import { type BatchSize, chooseBatchSize, type FreeMemory } from './batch-size.ts'
import { type BackendOptions, type DeviceChoice, type OpenedBackend, openBackend } from './device-choice.ts'

/** Plain data that can be sent to a worker process. */
export interface PlacementChoice extends BackendOptions, GuessChoice {
  /** Devices that the layers are split over, in order. With fewer than two, `device` counts. */
  readonly ppDevices?: readonly DeviceChoice[] | undefined
  /** Recurrent states on the device, which is the maximum number of rows per step. Absent: chosen from free memory. */
  readonly slots?: number | undefined
  /** Token budget of one step. */
  readonly maxTokens?: number | undefined
}

interface PlacementOptions extends WeightOptions {
  /** Called with the number of kernels that are compiled while the weights are read. */
  readonly onCompiling?: ((numKernels: number) => void) | undefined
  /** Called with the number of products that are tuned meanwhile. */
  readonly onTuning?: ((numProducts: number) => void) | undefined
}

interface PlacedModel {
  readonly model: Model
  /** The receiver owns it and must close it. */
  readonly backend: Backend
  readonly size: BatchSize
}

export function placeModel(checkpoint: Checkpoint, choice: PlacementChoice, options: PlacementOptions): PlacedModel {
  const facts = { numParameters: describeCheckpoint(checkpoint).numParameters }
  const open = (device: DeviceChoice | undefined) => openBackend({ ...choice, device }, facts)
  const loadOn: LoadOn = (backend, own, layers) => loadModel(checkpoint, backend, own, layers)
  const { ppDevices = [] } = choice
  if (ppDevices.length < 2) return onOne(open(choice.device), choice, options, loadOn)
  // Only these backends have kernels for GGUF's blocks.
  const holdsPacked = ppDevices.every((device) => /^(cpu|cuda)/.test(device))
  const sizes = modelBytes(checkpoint, options.weightType, holdsPacked)
  const ranges = splitLayers(sizes, ppDevices.length)
  return onSeveral(ranges, (s) => open(ppDevices[s]), choice, options, loadOn)
}

type LoadOn = (backend: Backend, options: WeightOptions, layers?: LayerRange) => Model

function onOne(
  { backend, freeMemory, compileAhead, tuneAhead }: OpenedBackend,
  asked: PlacementChoice,
  options: PlacementOptions,
  loadOn: LoadOn,
): PlacedModel {
  try {
    const recordIn = (given?: BatchSize) => (absent: OpenedBackend) => {
      const model = loadOn(absent.backend, { weightType: options.weightType })
      const size = given ?? chooseBatchSize(asked, model, absent.freeMemory())
      new ModelRunner(model, absent.backend, { ...size, fingerprint: '' })
    }
    const numKernels = compileAhead?.(recordIn())
    if (numKernels) options.onCompiling?.(numKernels)
    const model = loadOn(backend, options)
    const { stateShape, vocabSize } = model
    const guessingRows = sparesOf(asked, Number.POSITIVE_INFINITY, backend)
    const needed = { stateShape, vocabSize, guessingRows, keepsStates: keptRowOf(model, backend) > 0 }
    const size = chooseBatchSize(asked, needed, freeMemory())
    // While nothing is compiled there is nothing to do beside.
    if (numKernels) tuneAhead?.(recordIn(size), (numProducts) => options.onTuning?.(numProducts))
    return { model, backend, size }
  } catch (error) {
    backend.dispose()
    throw error
  }
}

function onSeveral(
  ranges: readonly LayerRange[],
  openStage: (s: number) => OpenedBackend,
  asked: PlacementChoice,
  options: WeightOptions,
  loadOn: LoadOn,
): PlacedModel {
  const opened: OpenedBackend[] = []
  try {
    for (const s of ranges.keys()) opened.push(openStage(s))
    const ownOptions = sharedProgress(options)
    const stages = opened.map(({ backend }, s): Stage => ({ backend, model: loadOn(backend, ownOptions(), ranges[s]) }))
    const free = opened.map(({ freeMemory }) => freeMemory())
    const models = stages.map(({ model }) => model)
    return { ...joinStages(stages, connect), size: tightestSize(asked, models, free) }
  } catch (error) {
    for (const { backend } of opened) backend.dispose()
    throw error
  }
}

/**
 * Size of what one stage passes to the next per token, in vectors of C floats: the residual, and v of the first layer.
 */
const CARRIED_VECTORS = 1.5

/** Every stage gets as many slots as the one with the least memory can hold. */
export function tightestSize(
  asked: Pick<PlacementChoice, 'slots' | 'maxTokens'>,
  models: readonly Pick<Model, 'stateShape' | 'vocabSize' | 'output'>[],
  free: readonly FreeMemory[],
): BatchSize {
  const sizesFor = (one: typeof asked) =>
    models.map((model, s) => {
      const batchModel = {
        stateShape: model.stateShape,
        // Logits and penalties are only where the head is.
        vocabSize: model.output === null ? 0 : model.vocabSize,
        // Input from another device, for every step in flight.
        moreVectors: s === 0 ? 0 : models.length * CARRIED_VECTORS,
      }
      return chooseBatchSize(one, batchModel, free[s]!)
    })
  const slots = Math.min(...sizesFor(asked).map(({ numSlots }) => numSlots))
  const [size] = sizesFor({ ...asked, slots })
  assert(size !== undefined, 'a pipeline without stages')
  return size
}

/** Combines the progress of all stages, each of which counts its own bytes from 0. */
function sharedProgress({ onProgress, ...options }: WeightOptions): () => WeightOptions {
  let done = 0
  return () => {
    const before = done
    return {
      ...options,
      onProgress(own, total) {
        done = before + own
        onProgress?.(done, total)
      },
    }
  }
}

/**
 * Connects two backends that hold parts of one model. Tensors go from GPU to GPU through the driver (cuda/peer.ts), and
 * between all others through host memory, while both wait.
 */
const connect: Connect = (from, to, pairs, maxFlights) =>
  isCuda(from) && isCuda(to) ? new PeerLink(from.device, to.device, pairs, maxFlights) : hostLink(from, to, pairs)

function isCuda(backend: Backend): backend is CudaBackend {
  return backend.name === 'cuda'
}

function hostLink(from: Backend, to: Backend, pairs: readonly (readonly [from: Tensor, to: Tensor])[]): Link {
  const areExact = from.name === 'reference' && to.name === 'reference'
  return {
    send(rows) {
      for (const [source, target] of pairs) {
        const count = rows * (source.shape[1] ?? 1)
        // Copied in f64, which the way through f32 would round.
        if (areExact) valuesOf(target).set(valuesOf(source).subarray(0, count))
        else to.writeTensor(target, from.readTensor(source, 0, count).result())
      }
    },
    dispose() {},
  }
}
