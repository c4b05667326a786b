/** What one model is started with: plain data, so that it can be handed to a worker process. `load.ts` carries it out. */
import type { ToolTemplate } from '../engine/messages.ts'
import type { AdapterChoice } from '../model/adapters.ts'
import type { PlacementChoice } from './placement.ts'

/** How the large matrices are held; 'file' keeps the checkpoint's own type. fp8 is for cuda alone. */
export type QuantChoice = 'file' | 'f32' | 'f16' | 'bf16' | 'int8' | 'q4' | 'nf4' | 'fp8'

export const QUANT_CHOICES: readonly QuantChoice[] = ['file', 'f32', 'f16', 'bf16', 'int8', 'q4', 'nf4', 'fp8']

export interface RunnerChoice extends PlacementChoice {
  /** Path of the checkpoint. */
  readonly model: string
  /** Merged into it one after the other. */
  readonly adapters?: readonly AdapterChoice[] | undefined
  readonly quant?: QuantChoice | undefined
}

/** A file with a tuned start state, and the name by which requests ask for it. */
export interface StartStateFile {
  readonly name: string
  readonly path: string
}

/** What is kept of prompts and conversations; docs/states.md explains each. */
export interface StateChoice {
  /** Memory for the states of prompt prefixes; 0 keeps none. A share of free memory when absent. */
  readonly prefixCacheBytes?: number | undefined
  /** For states of answers that give their slots to others for a while. */
  readonly preemptBytes?: number | undefined
  /** Where sessions are stored; absent: they live as long as the process. */
  readonly dataDir?: string | undefined
  /** Report a turn only when it is on disk. */
  readonly durable?: boolean | undefined
  /** States that other servers exported, or for other keys, may become sessions. Without a store any may. */
  readonly importForeign?: boolean | undefined
  /** Sessions whose state stays in a slot of the device. */
  readonly slotStates?: number | undefined
  /** Session states in memory, by number and by bytes. */
  readonly memoryStates?: number | undefined
  readonly memoryStateBytes?: number | undefined
  /** Bounds of one tenant's sessions. */
  readonly maxSessions?: number | undefined
  readonly maxSessionBytes?: number | undefined
  /** Turns of one session. */
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
  /** Instead of the secret in the database. */
  readonly key?: string | undefined
  /** Names of the model in the API; given by who starts the worker. */
  readonly model?: string | undefined
  readonly aliases?: readonly string[] | undefined
  /** Larger states are in the storage, smaller ones in the database. */
  readonly maxInlineBytes?: number | undefined
}

export interface EngineChoice extends RunnerChoice, StateChoice {
  /** Absent: one machine alone, which keeps its sessions in `dataDir`. */
  readonly cluster?: ClusterChoice | undefined
  readonly vocab?: string | undefined
  readonly maxWaiting?: number | undefined
  /** Milliseconds of a step with prompts beside answers. */
  readonly itlTargetMs?: number | undefined
  /** Prompt tokens of such a step. */
  readonly prefillChunk?: number | undefined
  readonly maxPromptTokens?: number | undefined
  readonly startStates?: readonly StartStateFile[] | undefined
  /** Absent: none, of a model that was not made for them. */
  readonly embeddings?: EmbeddingsChoice | undefined
  /** A file of EmbeddingRWKV's that scores the states of this model. */
  readonly reranker?: string | undefined
  /** Absent: g1. */
  readonly toolTemplate?: ToolTemplate | undefined
}

/** How a model that was made for answers makes embeddings: of its final hidden state after the last token, or of the mean of all. */
export const EMBEDDINGS_CHOICES = ['off', 'last', 'mean'] as const

type EmbeddingsChoice = (typeof EMBEDDINGS_CHOICES)[number]

export const TOOL_TEMPLATE_CHOICES = ['g1', 'vllm-rwkv'] as const satisfies readonly ToolTemplate[]
