/**
 * Where a model runs and how large its steps are: on one device, or by layers on several. Weights are loaded here, since
 * only what they leave free says how many sequences fit. Knows no files beside the checkpoint, and no engine.
 */
import type { Backend } from './backend/backend.ts'
import { connect } from './backend/link.ts'
import { type BatchSize, chooseBatchSize } from './batch-size.ts'
import {
  type BackendOptions,
  type DeviceChoice,
  type ModelFacts,
  type OpenedBackend,
  openBackend,
} from './device-choice.ts'
import type { Checkpoint } from './model/checkpoint.ts'
import { describeCheckpoint, loadableArchitecture } from './model/formats/describe.ts'
import { modelBytes, splitLayers } from './model/layer-split.ts'
import type { LoadModel, Model } from './model/model.ts'
import { joinStages, type Stage } from './model/pipeline.ts'
import { loadRwkv6 } from './model/rwkv6.ts'
import { loadRwkv7 } from './model/rwkv7.ts'
import type { WeightOptions } from './model/weights.ts'

/** Plain data, so that it can be handed to a worker process. */
export interface PlacementChoice extends BackendOptions {
  /** Devices that share the layers, in order; `device` where there are not two at least. */
  readonly ppDevices?: readonly DeviceChoice[] | undefined
  /** Recurrent states kept on the device = most rows of a step. Chosen from free memory when absent. */
  readonly slots?: number | undefined
  /** Token budget of one step. */
  readonly maxTokens?: number | undefined
}

export interface PlacedModel {
  readonly model: Model
  /** Belongs to whoever gets it. */
  readonly backend: Backend
  readonly size: BatchSize
}

const LOADERS: Readonly<Record<'rwkv6' | 'rwkv7', LoadModel>> = {
  rwkv6: loadRwkv6,
  rwkv7: loadRwkv7,
}

export function placeModel(
  checkpoint: Checkpoint,
  choice: PlacementChoice,
  options: WeightOptions,
): PlacedModel {
  const facts: ModelFacts = {
    architecture: loadableArchitecture(checkpoint),
    numParameters: describeCheckpoint(checkpoint).numParameters,
  }
  const { ppDevices = [] } = choice
  return ppDevices.length > 1
    ? onSeveral(checkpoint, ppDevices, choice, options, facts)
    : onOne(checkpoint, choice, options, facts)
}

function onOne(
  checkpoint: Checkpoint,
  choice: PlacementChoice,
  options: WeightOptions,
  facts: ModelFacts,
): PlacedModel {
  const { backend, freeMemory } = openBackend(choice, facts)
  try {
    const model = LOADERS[facts.architecture](checkpoint, backend, options)
    return { model, backend, size: chooseBatchSize(choice, model, freeMemory()) }
  } catch (error) {
    backend.dispose()
    throw error
  }
}

function onSeveral(
  checkpoint: Checkpoint,
  devices: readonly DeviceChoice[],
  choice: PlacementChoice,
  options: WeightOptions,
  facts: ModelFacts,
): PlacedModel {
  const ranges = splitLayers(modelBytes(checkpoint, options.weightType), devices.length)
  const opened: OpenedBackend[] = []
  try {
    for (const device of devices) opened.push(openBackend({ ...choice, device }, facts))
    const load = LOADERS[facts.architecture]
    const progress = joinedProgress(options)
    const stages = opened.map(
      ({ backend }, s): Stage => ({
        backend,
        model: load(checkpoint, backend, progress(), ranges[s]),
      }),
    )
    const sizes = opened.map(({ freeMemory }, s) => {
      const { stateShape, output, vocabSize } = stages[s]!.model
      // Logits and penalties are where the head is.
      const batchModel = { stateShape, vocabSize: output === null ? 0 : vocabSize }
      return (asked: PlacementChoice) => chooseBatchSize(asked, batchModel, freeMemory())
    })
    // The tightest stage decides for all.
    const slots = Math.min(...sizes.map((sizeOf) => sizeOf(choice).numSlots))
    const size = sizes.map((sizeOf) => sizeOf({ ...choice, slots }))[0]!
    return { ...joinStages(stages, connect), size }
  } catch (error) {
    for (const { backend } of opened) backend.dispose()
    throw error
  }
}

/** One bar over the loads of all stages, each of which counts its own bytes from 0. */
function joinedProgress({ onProgress, ...options }: WeightOptions): () => WeightOptions {
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
