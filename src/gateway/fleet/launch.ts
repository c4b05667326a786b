/** What a worker is made of, and the interface to the code that knows files, devices and processes. */
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
  /** Weight format; null: the server's default. */
  readonly quant: string | null
  readonly startStates: readonly StartStateFile[]
  /** Adapters to merge into the weights; absent: the server's choice for this file. */
  readonly adapters?: readonly LaunchAdapter[] | undefined
  /** Real path of the vocabulary; null: found beside the model. */
  readonly vocab: string | null
  /** Real path of the draft model; null: the server's choice for this file. */
  readonly draft?: string | null
  /** The request as it was made: for people, and for devices and sizes, which the other fields leave out. */
  readonly spec: WorkerSpec
}

/** Real paths of the files that a spec names. */
type FoundFiles = Pick<Launch, 'file'> & Partial<Pick<Launch, 'startStates' | 'vocab' | 'draft' | 'adapters'>>

/** Every source of workers (command line, configuration file, HTTP) gives a spec with the name of its model. */
export function launchOf(spec: WorkerSpec & { readonly model_name: string }, found: FoundFiles): Launch {
  const { model_name: id, quant, states: startStates, tokenizer_path: vocab, draft_path: draft } = spec
  return { id, quant, startStates, vocab, draft, ...found, spec }
}

/**
 * Makes a worker without starting it; throws for a file that cannot be one. `launch` is called again whenever a process
 * is started, because start states may have changed.
 */
export type Launcher = (
  launch: () => Launch,
  observer: { readonly onLine: (line: string) => void; readonly onChange: () => void },
) => { readonly handle: WorkerHandle; readonly tokenizer: TextCodec }

export function withStartStates(launch: Launch, startStates: readonly StartStateFile[]): Launch {
  return { ...launch, startStates, spec: { ...launch.spec, states: startStates } }
}

/** A name or alias means one model. Throws conflict if one of `others` has it. */
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

/** A worker for which only the file is given. */
export const DEFAULT_SPEC: WorkerSpec = {
  ...{ model_path: '', tokenizer_path: null, draft_path: null, model_name: null, aliases: [], states: [] },
  ...{ gpu_id: null, device: null, pp_devices: null, host: '127.0.0.1', port: null, threads: null },
  ...{ quant: null, wkv: null, tool_template: null, speculate: null, use_cuda_graph: null },
  ...{ max_batch_size: null, max_prefill_batch: null, max_queue_size: null, prefill_chunk_size: null },
}

/** Keeps a worker alive. `client` takes requests, and is null unless the worker is ready. */
export interface WorkerHandle extends EngineSource {
  /** Answers questions about states, also while the worker ends. Null without a process. */
  readonly engine: EngineClient | null
  readonly pid: number | null
  /** Only while it loads. */
  readonly progress: WorkerRecord['progress']
  /** Restarts after crashes. */
  readonly restarts: number
  /** Exit code of the last process that ended, or the negated number of the signal that ended it. */
  readonly exitCode: number | null
  /** The last error of a worker that was given up, else null. For operators, because it may name files. */
  readonly failure: string | null
  /** Memory of the process; null if unknown. */
  readonly bytes: number | null
  /** Tokens that were requested to check whether the process answers. */
  readonly numProbes: number
  /** Resolves when it is ready, throws if it never will be. Call it once. */
  start(): Promise<void>
  /** Resolves when the process has gone. Running answers end with an error. */
  stop(): Promise<void>
}
