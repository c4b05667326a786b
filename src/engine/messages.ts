/**
 * What crosses between the gateway and a worker: plain objects, one message per step each way. The same types are
 * used when the engine runs in the caller's own process. No classes, no functions, no tensors.
 */

import type { ErrorShape } from '../errors.ts'
import type { Constraint } from '../grammar/constraint.ts'
import type { ModelInfo, TokenLogprob } from '../model/runner.ts'
import { type SamplingNumbers, samplingNumbers } from '../sampling.ts'
import type { EngineStats, GuessesBy } from './stats.ts'

/** How tokens are drawn: the numbers of sampling.ts, which dialects fill with their own defaults, and the rest. */
export interface SamplingParams extends SamplingNumbers {
  /** Null: the engine draws one and reports it. Unsigned 64 bit. */
  readonly seed: bigint | null
  readonly logitBias: readonly (readonly [token: number, bias: number])[]
  readonly bannedTokens: readonly number[]
}

/** The model's own distribution: nothing cut off, nothing penalised. Other settings start from it. */
export const PLAIN_SAMPLING: SamplingParams = {
  ...samplingNumbers((_, { off }) => off),
  seed: null,
  logitBias: [],
  bannedTokens: [],
}

export interface StopParams {
  /** Matched on decoded text, across tokens; the earliest match wins and is never emitted. */
  readonly strings: readonly string[]
  /** Matched on ids; the stopping token is never emitted. Token 0 (end of text) is one unless ignoreEos. */
  readonly tokens: readonly number[]
  readonly ignoreEos: boolean
}

/** What a request asks for that says nothing but its prompt and how many tokens may follow. */
export const PLAIN_REQUEST = {
  n: 1,
  sampling: PLAIN_SAMPLING,
  stop: { strings: [], tokens: [], ignoreEos: false },
  logprobs: null,
  promptLogprobs: null,
} as const

/** Which hidden states make an embedding. */
export type Pooling = 'last' | 'mean'

/** Tasks of models with heads for embeddings: retrieval, similarity, classification. */
export type EmbeddingTask = 'retr' | 'sts' | 'cls'

/** The form in which the model was trained to read about tools and to call them. */
export type ToolTemplate = 'g1' | 'vllm-rwkv'

export interface MixedState {
  readonly startState: string | null
  readonly weight: number
}

/** One request of a client: one prompt, n answers. */
export interface GenerateRequest {
  /** Unique among live requests. */
  readonly id: string
  /** At least one token. */
  readonly prompt: Int32Array
  readonly n: number
  readonly maxTokens: number
  readonly sampling: SamplingParams
  readonly stop: StopParams
  /** What the answer must be; anything when absent. */
  readonly constraint?: Constraint | undefined
  /** What the answer will most likely say. The answer is the same without it, and takes more steps. */
  readonly prediction?: Int32Array | undefined
  /** null: none; k: log-probabilities of answer tokens with the k best alternatives. */
  readonly logprobs: number | null
  /** The same for the prompt's tokens (echo). */
  readonly promptLogprobs: number | null
  /** Nobody reads along, so text comes some tokens at a time: the first alone, then twice as many, at most 16; all at the end. */
  readonly isGathered?: boolean | undefined
  /**
   * The final hidden state, before the head, instead of an answer: that after the last token, or the mean of those after
   * each. With maxTokens 0 and cache 'no-store', for one choice without session or mixture.
   */
  readonly embedding?: Pooling | undefined
  /** The head that the hidden state goes through; for models that have some. */
  readonly embeddingTask?: EmbeddingTask | undefined
  /**
   * Ask for a score of the prompt's last state instead of an answer; larger is more relevant. Same conditions as an
   * embedding.
   */
  readonly isRanked?: boolean | undefined
  /** Name of a tuned start state to begin with instead of the empty state. */
  readonly startState?: string | undefined
  /**
   * Several start states instead of one (null: the model's own): each reads prompt and answer in a slot of its own, and
   * tokens are drawn from the sum of their logits, each times its weight. For one choice, without session, scores or cache.
   */
  readonly mixture?: readonly MixedState[] | undefined
  /** Owner of the states: a tenant never finds states of another one. '' when absent. */
  readonly tenant?: string | undefined
  /** The tenant's share of a busy engine; 1 when absent. */
  readonly share?: number | undefined
  /** A higher one is served before a lower one, and takes its slots; 0 when absent. */
  readonly priority?: number | undefined
  /** Bytes that the states of the tenant's sessions may take; the server's bound when absent. */
  readonly storedBytes?: number | undefined
  /** 'no-store': no cached state is looked up for this request and none is left behind. Default 'use'. */
  readonly cache?: 'use' | 'no-store' | undefined
  /** Ascending lengths of prompt prefixes that other prompts may share: the ends of messages. */
  readonly boundaries?: Int32Array | undefined
  /** Continue a session: `prompt` then holds only the new tokens. n must be 1, promptLogprobs null, cache 'use'. */
  readonly session?: SessionUse | undefined
  /** With a session: the prompt to read instead when the session has no turn to continue. */
  readonly promptAtBeginning?: Int32Array | undefined
}

/** How a request uses a session. Turns are numbered 1, 2, …; turn 0 is the empty state before any token. */
export interface SessionUse {
  readonly id: string
  readonly ifMissing: 'create' | 'error'
  /** The turn to continue from; the head when absent. The new turn becomes the head, the others stay. */
  readonly from?: number | undefined
  /** What to do while another request is writing to the session. */
  readonly ifBusy: 'wait' | 'conflict'
  /** When the answer is cancelled: save no turn, or one with the tokens drawn so far. */
  readonly onCancel: 'drop' | 'keep'
  /** `conflict` unless the session is at this version. */
  readonly ifVersion?: number | undefined
  /** Forget the session this long after its last turn; the server's default when absent. */
  readonly ttlSeconds?: number | undefined
  /**
   * The caller's own name for this request, kept with the turn. When it asks again without `from`, it continues the
   * turn before its own: the first answer was saved, but the caller never saw it.
   */
  readonly origin?: string | undefined
  /** Kept with the turn for whoever reads it back; at most MAX_NOTE_BYTES. */
  readonly note?: string | undefined
}

export const MAX_NOTE_BYTES = 32 * 1024

/** A turn of a session, and the version of the session that the turn made or found. */
export interface SessionPosition {
  readonly id: string
  readonly turn: number
  readonly version: number
  /** The turn that this one continued; 0: the beginning. */
  readonly continued?: number
}

/** 'stop': a stop token or string; 'length': maxTokens reached. */
export type FinishReason = 'stop' | 'length'

/** A token of an answer with its bytes, for logprobs replies. */
export interface TokenText extends TokenLogprob {
  /** Bytes of the drawn token, then of each alternative, in the order of `top`. */
  readonly bytes: Uint8Array
  readonly topBytes: readonly Uint8Array[]
}

export type EngineEvent =
  /** The prompt has been read; sent once per request before any text. Null logprob for the first token. */
  | {
      readonly type: 'prompt'
      readonly id: string
      /** The worker that reads it. The gateway's router sets it; an engine does not know. */
      readonly worker?: string
      /** The seed in use: the request's own, or the one drawn for it. The engine always sets it. */
      readonly seed?: bigint
      /** Prompt tokens that were not computed because a kept state had consumed them. 0 when absent. */
      readonly cachedTokens?: number
      /** Tokens read in all, those of the session's earlier turns included; the prompt's length when absent. */
      readonly contextTokens?: number
      /** The turn being continued. */
      readonly session?: SessionPosition
      readonly logprobs: readonly (TokenText | null)[] | null
      /** [C] when asked. */
      readonly embedding?: Float32Array
      readonly score?: number
    }
  /** New text of choice `index`. Text is whole characters; a stop string is never part of it. */
  | {
      readonly type: 'text'
      readonly id: string
      readonly index: number
      readonly text: string
      /**
       * Tokens whose first character is in this event, and tokens without text drawn up to here. Tokens of which a
       * stop string swallowed every byte never appear, nor does a stopping token: see answer-text.ts.
       */
      readonly tokens: readonly number[]
      /** One per token of `tokens`, when asked. */
      readonly logprobs: readonly TokenText[] | null
    }
  | {
      readonly type: 'finish'
      readonly id: string
      readonly index: number
      readonly reason: FinishReason
      /** What stopped it: the string, or the token id; null for length. */
      readonly matched: string | number | null
      /** Tokens drawn for this choice, the stopping token included. */
      readonly completionTokens: number
      /** How many guesses of its tokens were right, by proposer; absent when there were none. */
      readonly guesses?: GuessesBy
      /** The turn that this answer became. Absent without a session, or when the session was deleted meanwhile. */
      readonly session?: SessionPosition
    }
  /** The whole request failed; no further event of it follows. */
  | { readonly type: 'error'; readonly id: string; readonly error: ErrorShape }

/** Where the state of a turn is. */
type StateTier = 'device' | 'memory' | 'disk'

export interface TurnInfo {
  readonly turn: number
  /** The turn that it continued; 0 for the first. */
  readonly parent: number
  /** Tokens of the conversation up to and with this turn. */
  readonly numTokens: number
  /** Milliseconds since 1970. */
  readonly createdAt: number
  readonly tier: StateTier
  /** Whether it survives the end of the process. */
  readonly isSaved: boolean
}

export interface SessionInfo {
  readonly id: string
  /** Grows with every change. */
  readonly version: number
  /** The turn that the next request continues; 0 when there is none. */
  readonly head: number
  /** Oldest first. Old turns are pruned; see docs/states.md. */
  readonly turns: readonly TurnInfo[]
  readonly createdAt: number
  readonly updatedAt: number
  readonly expiresAt: number | null
  /** Bytes of all its states. */
  readonly bytes: number
  /** A request is writing to it. */
  readonly isBusy: boolean
  /** The note of the head turn; only when the session was asked for by id. */
  readonly note?: string | undefined
}

/** Names a session. A session of another tenant is `not_found`. */
export interface SessionRef {
  readonly tenant: string
  readonly id: string
}

/**
 * Calls to an engine beside answers, one row per method. All fail with a SkeinError: not_found for an unknown session
 * or turn, conflict while a request writes to it, state_incompatible, state_unavailable.
 */
export interface EngineCalls {
  /** Most recently used first. `after` is the last id of the previous page. */
  'sessions.list': {
    params: { readonly tenant: string; readonly limit?: number | undefined; readonly after?: string | undefined }
    result: readonly SessionInfo[]
  }
  'sessions.get': { params: SessionRef; result: SessionInfo }
  /** Copies the turns up to `turn` (default: the head) into a new session. `conflict` if `newId` exists. */
  'sessions.fork': {
    params: SessionRef & {
      readonly newId: string
      readonly turn?: number | undefined
      readonly storedBytes?: number | undefined
    }
    result: SessionInfo
  }
  /** Makes `turn` the head; 'undo' means the parent of the head. No turn is lost, so rewinding forward is possible. */
  'sessions.rewind': {
    params: SessionRef & { readonly turn: number | 'undo'; readonly ifVersion?: number | undefined }
    result: SessionInfo
  }
  /** Deletes from every tier. A request that is writing to the session still answers, and saves nothing. */
  'sessions.delete': { params: SessionRef; result: null }
  /**
   * Saves all of the session and forgets it in this worker, so that another worker may continue it. Does nothing for a
   * session that this worker does not hold; state_unavailable without a store.
   */
  'sessions.release': { params: SessionRef; result: null }
  /** A turn (default: the head) as a self-describing file. */
  'sessions.export': { params: SessionRef & { readonly turn?: number | undefined }; result: Uint8Array }
  /** Tokens of the conversation up to and with a turn: those from `start` to before `end`. */
  'sessions.tokens': {
    params: SessionRef & { readonly turn: number; readonly start: number; readonly end: number }
    result: Int32Array
  }
  /** A token with which other tenants may copy a turn (default: the head) for a while. */
  'sessions.share': {
    params: SessionRef & { readonly turn?: number | undefined; readonly seconds: number }
    result: { readonly token: string; readonly turn: number; readonly expiresAt: number }
  }
  /** Makes a new session whose turn 1 is the shared turn. */
  'sessions.open': {
    params: SessionRef & { readonly token: string; readonly storedBytes?: number | undefined }
    result: SessionInfo
  }
  /** Makes a new session whose turn 1 is an exported state. `conflict` if the id exists. */
  'sessions.import': {
    params: SessionRef & {
      readonly bytes: Uint8Array
      readonly ttlSeconds?: number | undefined
      readonly storedBytes?: number | undefined
    }
    result: SessionInfo
  }
  /**
   * Adds a tuned start state from a file. `conflict` if the name is taken and may not be replaced. Returns the names.
   */
  'startStates.add': {
    params: { readonly name: string; readonly path: string; readonly replace?: boolean | undefined }
    result: readonly string[]
  }
  /** Requests that already began with it are still answered. Returns the names that are left. */
  'startStates.remove': { params: { readonly name: string }; result: readonly string[] }
}

export type EngineCall = keyof EngineCalls

export type CallHandlers = {
  readonly [M in EngineCall]: (
    params: EngineCalls[M]['params'],
  ) => EngineCalls[M]['result'] | Promise<EngineCalls[M]['result']>
}

/** What clients may know of a loaded model. */
export interface EngineInfo {
  readonly model: ModelInfo
  readonly numSlots: number
  readonly maxWaiting: number
  readonly maxPromptTokens: number
  /** Names for a request's `startState`; none when absent. */
  readonly startStates?: readonly string[]
  /** Which hidden states make embeddings; absent when the model offers none. */
  readonly embeddings?: Pooling
  /** The heads of a model that was trained for embeddings. */
  readonly embeddingTasks?: readonly EmbeddingTask[]
  /** The model has a reranker. */
  readonly ranks?: true
  /** Absent: g1. */
  readonly toolTemplate?: ToolTemplate
}

/** gateway → worker */
export type ToWorker =
  | { readonly type: 'generate'; readonly request: GenerateRequest }
  | { readonly type: 'cancel'; readonly ids: readonly string[] }
  /** Asks whether the worker is alive; the answer is its counters. */
  | { readonly type: 'ping' }
  | AnyCall
  /** drain: answer what is live first and take no more; otherwise live requests get an error event. */
  | { readonly type: 'shutdown'; readonly drain?: boolean }

/** A call as a message, one member per row of the table. */
type AnyCall = {
  [M in EngineCall]: {
    readonly type: 'call'
    readonly id: number
    readonly method: M
    readonly params: EngineCalls[M]['params']
  }
}[EngineCall]

/** worker → gateway */
export type FromWorker =
  | { readonly type: 'progress'; readonly doneBytes: number; readonly totalBytes: number }
  /** What the worker does before it is ready, besides reading weights. */
  | { readonly type: 'stage'; readonly text: string }
  | { readonly type: 'ready'; readonly info: EngineInfo }
  | {
      readonly type: 'step'
      readonly events: readonly EngineEvent[]
      /** Null: those of an earlier message. */
      readonly stats: EngineStats | null
    }
  | { readonly type: 'fatal'; readonly error: ErrorShape }
  /** The answer to the call of that id. */
  | { readonly type: 'result'; readonly id: number; readonly value: unknown }
  | { readonly type: 'result'; readonly id: number; readonly error: ErrorShape }
