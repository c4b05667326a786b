/** What a worker is made of, and how it is made: the seam to whoever knows files, devices and processes. */
import type { TextCodec } from '../api/models.ts'
import type { Keeper } from './keeper.ts'
import type { WorkerSpec } from './management/contract.ts'

export interface StartStateFile {
  readonly name: string
  /** Real path. */
  readonly path: string
}

export interface Launch {
  /** Name in the API. */
  readonly id: string
  /** Real path of the checkpoint. */
  readonly file: string
  /** How matrices are held; null: as the server was told to. */
  readonly quant: string | null
  readonly startStates: readonly StartStateFile[]
  /** Real path of the vocabulary; null: found beside the model. */
  readonly vocab: string | null
  /** What was asked for, for people, and for what the fields above do not say: devices, sizes. */
  readonly spec: WorkerSpec
}

export interface LaunchObserver {
  /** Each line that the worker prints. */
  readonly onLine: (line: string) => void
  /** The keeper's state, reason or progress is another. */
  readonly onChange: () => void
}

export interface Launched {
  readonly keeper: Keeper
  readonly tokenizer: TextCodec
}

/**
 * Makes a worker without starting it; throws for a file that cannot be one. `launch` is asked again whenever a process
 * is started: start states come and go.
 */
export type Launcher = (launch: () => Launch, observer: LaunchObserver) => Launched

export function withStartStates(launch: Launch, startStates: readonly StartStateFile[]): Launch {
  return { ...launch, startStates, spec: { ...launch.spec, states: startStates } }
}

/** A worker of which nothing but the file is said. */
export const DEFAULT_SPEC: WorkerSpec = {
  model_path: '',
  tokenizer_path: null,
  gpu_id: null,
  host: '127.0.0.1',
  port: null,
  max_batch_size: null,
  max_prefill_batch: null,
  max_queue_size: null,
  prefill_chunk_size: null,
  use_cuda_graph: null,
  model_name: null,
  aliases: [],
  device: null,
  pp_devices: null,
  quant: null,
  wkv: null,
  threads: null,
  states: [],
}
