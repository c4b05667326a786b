/**
 * A served model as the wire dialects see it: its engine, its tokenizer, and how it is found by name.
 * Nothing here knows whether the engine is a worker process, or what a tokenizer is made of.
 */
import type { EngineClient } from '../engine/client.ts'
import type { MixedState } from '../engine/messages.ts'
import { invalid } from '../errors.ts'

/** The part of a tokenizer that dialects use; `tokenizer/tokenizer.ts` satisfies it. */
export interface TextCodec {
  readonly vocabSize: number
  encode(text: string): Int32Array
  /**
   * The same for several texts, off the event loop: the tokens of each; once there are more than `most` in all, not all of
   * them.
   */
  encodeAside(texts: readonly string[], most: number): Promise<readonly Int32Array[]>
  decode(tokens: readonly number[] | Int32Array): string
  /** The bytes of one token; a token need not be whole characters. */
  bytesOf(token: number): Uint8Array
}

export interface ServedModel {
  readonly id: string
  /** Unix seconds. */
  readonly created: number
  readonly client: EngineClient
  readonly tokenizer: TextCodec
  /** Present where the name is that of a mixture of its states. */
  readonly mixture?: Mixture
}

export interface Mixture {
  /** Weights add up to 1. */
  readonly states: readonly MixedState[]
  /** For requests that do not set these. */
  readonly defaults: { readonly temperature: number | null; readonly topP: number | null }
}

export type ModelState = 'loading' | 'ready' | 'restarting' | 'failed' | 'stopped'

export interface ModelEntry {
  readonly id: string
  readonly created: number
  readonly state: ModelState
  /** Why it is not ready, for people; null when it is. */
  readonly reason: string | null
  /** Null unless ready. */
  readonly client: EngineClient | null
  /** Other names that mean it. */
  readonly aliases?: readonly string[]
  /** Names of mixtures of its start states. */
  readonly mixtures?: readonly string[]
  /**
   * Workers that are to serve it, and how many of them are ready; beside them those that could never be loaded. Absent
   * where there is no such thing.
   */
  readonly workers?: { readonly all: number; readonly ready: number; readonly failed: number }
}

export interface ModelRegistry {
  list(): readonly ModelEntry[]
  /**
   * The model of that name; null, undefined or '' is the only model there is, as are "rwkv", "rwkv7" and "rwkv-7" where no
   * model is called so.
   * `model@state` and `model state` name the model with a start state of its own.
   * Throws `not_found` with param `model` for an unknown name, `model_not_loaded` while it is not ready.
   */
  get(name: string | null | undefined): ServedModel
}

export interface ModelChoice {
  /** A file of the server's folder of models, as the client names it. */
  readonly file: string
  readonly id: string
  /** How matrices are held; null: as the server does by itself. */
  readonly quant: string | null
  /** Merged into the weights; absent: only the adapters that the server was started with. */
  readonly adapter?: AdapterFile | undefined
  /** The field that names the file. */
  readonly param: string
}

export interface AdapterFile {
  readonly file: string
  /** The factor of its product; null: as `--lora` without one. */
  readonly scale: number | null
  /** The field that names the file. */
  readonly param: string
}

export interface StartStatesChoice {
  /** Null: the only model there is. */
  readonly model: string | null
  readonly states: readonly { readonly name: string; readonly file: string }[]
  /** Names of start states that go when these have come; unknown ones do not matter. */
  readonly instead?: readonly string[]
  readonly param: string
}

export interface MixtureChoice {
  /** Null: the only model there is. */
  readonly model: string | null
  readonly name: string
  readonly files: readonly string[]
  /** The model's own state takes part, after those of the files. */
  readonly withOriginal: boolean
  /** In the order of the states; null: all the same. */
  readonly weights: readonly number[] | null
  readonly defaults: Mixture['defaults']
  readonly param: string
}

/** Start states that answer together. */
export interface MixtureAdmin {
  /** Replaces a mixture of the same name. */
  addMixture(choice: MixtureChoice): Promise<void>
  /** Applies to later requests. Throws not_found for an unknown mixture. */
  setMixtureWeights(model: string | null, name: string, weights: readonly number[]): Promise<void>
}

/** Changing what is served while it is. Every change resolves when it is in force, and changes nothing when it throws. */
export interface ModelAdmin {
  /**
   * An older model of that name answers until the new one can. The same choice of the same files again does nothing: start
   * states stay, and it says false.
   */
  load(choice: ModelChoice): Promise<boolean>
  /** Null: all of them. Requests under way are answered. */
  remove(id: string | null): Promise<void>
  /** All of them or none, while requests go on. Start states of the same names are replaced. */
  addStartStates(choice: StartStatesChoice): Promise<void>
  removeStartStates(): Promise<void>
}

/** How far a model is that is fetched from the hub. */
export interface FetchProgress {
  readonly id: string
  readonly state: 'running' | 'done' | 'failed'
  /** The file being written; null before and after. */
  readonly file: string | null
  readonly done_bytes: number
  readonly total_bytes: number
  /** Why it failed, for people. */
  readonly reason: string | null
}

export interface ModelFetcher {
  /** Starts a download and reports its progress; throws for an unknown name, and while another is under way. */
  start(name: string): FetchProgress
  /** Null for one that was long ago. */
  progress(id: string): FetchProgress | null
}

/** What may stand behind a model's name: its start states and the mixtures of them. */
export function stateNames({ client, mixtures = [] }: ModelEntry): string[] {
  return [...(client?.info.startStates ?? []), ...mixtures]
}

/** `param` is the field that the weights came in. */
export function weighted(states: readonly (string | null)[], weights: readonly number[], param: string): MixedState[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  if (weights.length !== states.length || !(total > 0)) {
    const expected = `${states.length} numbers (one for each file, then one for the model's own state where it takes part) with a sum above 0`
    throw invalid(param, `expected ${expected}`)
  }
  return states.map((startState, i) => ({ startState, weight: weights[i]! / total }))
}
