/** What a worker is made of, and how it is made: the seam to whoever knows files, devices and processes. */
import type { TextCodec } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import type { WorkerRecord, WorkerSpec } from '../contract.ts'
import type { EngineSource } from '../routing/registry.ts'

export interface StartStateFile {
  readonly name: string
  /** Real path. */
  readonly path: string
}

interface LaunchAdapter {
  /** Real path. */
  readonly path: string
  readonly scale?: number
}

export interface Launch {
  /** Name in the API. */
  readonly id: string
  /** Real path of the checkpoint. */
  readonly file: string
  /** How matrices are held; null: as the server was told to. */
  readonly quant: string | null
  readonly startStates: readonly StartStateFile[]
  /** Merged into the weights; absent: as the server was told for this file. */
  readonly adapters?: readonly LaunchAdapter[] | undefined
  /** Real path of the vocabulary; null: found beside the model. */
  readonly vocab: string | null
  /** Real path of the draft model; null: as the server was told for this file. */
  readonly draft?: string | null
  /** What was asked for, for people, and for what the fields above do not say: devices, sizes. */
  readonly spec: WorkerSpec
}

/** What a spec names, found: real paths. */
interface FoundFiles {
  readonly file: string
  readonly startStates?: readonly StartStateFile[]
  readonly vocab?: string | null
  readonly draft?: string | null
  readonly adapters?: readonly LaunchAdapter[] | undefined
}

/** However a worker is asked for (command line, configuration file, HTTP), it is by a spec with the name of its model. */
export function launchOf(spec: WorkerSpec & { readonly model_name: string }, found: FoundFiles): Launch {
  const { model_name: id, quant, states: startStates, tokenizer_path: vocab, draft_path: draft } = spec
  return { id, quant, startStates, vocab, draft, ...found, spec }
}

interface LaunchObserver {
  /** Each line that the worker prints. */
  readonly onLine: (line: string) => void
  /** The keeper's state, reason or progress is another. */
  readonly onChange: () => void
}

interface Launched {
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

/** A name means one model, and an alias is a name. Throws conflict for one that is another model's among `others`. */
export function refuseSharedNames({ id, spec }: Launch, others: readonly Launch[]): void {
  for (const other of others.filter((each) => each.id !== id)) {
    const theirs = [other.id, ...other.spec.aliases]
    if (theirs.includes(id)) throw taken('model_name', `${id} is another name of the model ${other.id}`)
    const alias = spec.aliases.find((name) => theirs.includes(name))
    if (alias !== undefined) throw taken('aliases', `${alias} means the model ${other.id}`)
  }
}

function taken(param: string, message: string): SkeinError {
  return new SkeinError('conflict', `${param}: ${message}; choose another`, { param })
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
  tool_template: null,
  speculate: null,
  draft_path: null,
  threads: null,
  states: [],
}

/** `client` takes requests, and is null unless the worker is ready. */
export interface Keeper extends EngineSource {
  /** What may still be asked about states: also while the worker ends. Null without a process. */
  readonly engine: EngineClient | null
  readonly pid: number | null
  /** While loading. */
  readonly progress: WorkerRecord['progress']
  /** Crashes after which it was started again. */
  readonly restarts: number
  /** Exit code of the process that ended last, or minus the number of the signal that ended it. */
  readonly exitCode: number | null
  /** Why it was given up, in the words of its last error; null unless it was. For operators: it may name files. */
  readonly failure: string | null
  /** Memory of the process; null where that is unknown. */
  readonly bytes: number | null
  /** Tokens that were asked for to see whether the process answers. */
  readonly numProbes: number
  /** Resolves when it is ready, throws if it never will be. Once. */
  start(): Promise<void>
  /** Resolves when the process has gone. What it was answering ends with an error. */
  stop(): Promise<void>
}
