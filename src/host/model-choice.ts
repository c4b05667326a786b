/** The choices for one model, as plain data that can be sent to a worker process. `load.ts` carries them out. */
import type { ToolTemplate } from '../engine/messages.ts'
import type { StartStateFile } from '../gateway/fleet/launch.ts'
import type { AdapterChoice } from '../model/adapters.ts'
import type { PlacementChoice } from './placement.ts'

/** Format of the large matrices; 'file' keeps the checkpoint's type. fp8 works only on cuda. */
export type QuantChoice = 'file' | 'f32' | 'f16' | 'bf16' | 'int8' | 'q4' | 'nf4' | 'fp8'

export const QUANT_CHOICES: readonly QuantChoice[] = ['file', 'f32', 'f16', 'bf16', 'int8', 'q4', 'nf4', 'fp8']

export interface RunnerChoice extends PlacementChoice {
  /** Path of the checkpoint. */
  readonly model: string
  /** Adapters to merge, in order. */
  readonly adapters?: readonly AdapterChoice[] | undefined
  readonly quant?: QuantChoice | undefined
}

/** What is kept of prompts and conversations (docs/states.md). */
export interface StateChoice {
  /** Memory for the states of cached prefixes; 0 turns the cache off. Absent: a share of free memory. */
  readonly prefixCacheBytes?: number | undefined
  /** Memory for the states of preempted answers. */
  readonly preemptBytes?: number | undefined
  /** Where sessions are stored; absent: they live as long as the process. */
  readonly dataDir?: string | undefined
  /** Report a turn only when it is on disk. */
  readonly durable?: boolean | undefined
  /** Accept states that were exported by other servers or for other keys. Without a store all are accepted. */
  readonly importForeign?: boolean | undefined
  /** Session states kept on the device. */
  readonly slotStates?: number | undefined
  /** Session states kept in memory, by number and by bytes. */
  readonly memoryStates?: number | undefined
  readonly memoryStateBytes?: number | undefined
  /** Limits of one tenant's sessions. */
  readonly maxSessions?: number | undefined
  readonly maxSessionBytes?: number | undefined
  /** Turns kept per session. */
  readonly maxTurns?: number | undefined
  readonly sessionTtlSeconds?: number | undefined
}

/** The cluster that a worker's states and sessions belong to. */
export interface ClusterChoice {
  /** postgres://… */
  readonly database: string
  /** s3://BUCKET/PREFIX or file:///DIR */
  readonly blobs: string
  /** Name of the server that the worker belongs to, and the URL at which other members reach it. */
  readonly node: string
  readonly url: string
  /** Replaces the secret in the database. */
  readonly key?: string | undefined
  /** Names of the model in the API, set by the code that starts the worker. */
  readonly model?: string | undefined
  readonly aliases?: readonly string[] | undefined
  /** Larger states go to the storage, smaller ones to the database. */
  readonly maxInlineBytes?: number | undefined
}

export interface EngineChoice extends RunnerChoice, StateChoice {
  /** Absent: a single server, which keeps its sessions in `dataDir`. */
  readonly cluster?: ClusterChoice | undefined
  readonly vocab?: string | undefined
  readonly maxWaiting?: number | undefined
  /** Target time of a step that reads prompts while answers run, in milliseconds. */
  readonly itlTargetMs?: number | undefined
  /** Prompt tokens of such a step. */
  readonly prefillChunk?: number | undefined
  readonly maxPromptTokens?: number | undefined
  readonly startStates?: readonly StartStateFile[] | undefined
  /** Absent: none, unless the model was made for embeddings. */
  readonly embeddings?: EmbeddingsChoice | undefined
  /** An EmbeddingRWKV file that scores states of this model. */
  readonly reranker?: string | undefined
  /** Absent: g1. */
  readonly toolTemplate?: ToolTemplate | undefined
}

/** Embeddings of a model made for answers: its final hidden state of the last token, or the mean over all tokens. */
export const EMBEDDINGS_CHOICES = ['off', 'last', 'mean'] as const

type EmbeddingsChoice = (typeof EMBEDDINGS_CHOICES)[number]

export const TOOL_TEMPLATE_CHOICES = ['g1', 'vllm-rwkv'] as const satisfies readonly ToolTemplate[]
