/**
 * What crosses between the gateway and a worker: plain objects, one message per step each way. The same types are
 * used when the engine runs in the caller's own process. No classes, no functions, no tensors.
 */

import type { ErrorShape } from '../errors.ts'
import type { Constraint } from '../grammar/constraint.ts'
import type { ModelInfo, TokenLogprob } from '../model/runner.ts'
import { type SamplingNumbers, samplingNumbers } from '../sampling.ts'
import type { EngineStats, GuessesBy } from './stats.ts'

/** How tokens are drawn: the numbers of sampling.ts, which wire dialects fill from their own defaults, and what is no number. */
export interface SamplingParams extends SamplingNumbers {
  /** Null: the engine draws one and reports it. Unsigned 64 bit. */
  readonly seed: bigint | null
  readonly logitBias: readonly (readonly [token: number, bias: number])[]
  readonly bannedTokens: readonly number[]
}

/** The model's own distribution: nothing cut off, nothing penalised. To begin others from. */
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

/** Which hidden states an embedding is made of. */
export type Pooling = 'last' | 'mean'

/** What embeddings are for, by the heads of models that were trained to give them: to find, to compare, to sort. */
export type EmbeddingTask = 'retr' | 'sts' | 'cls'

/** How the model was taught to read of tools and to call them. */
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
  /** What it will most likely say. It is the same without, and takes more steps. */
  readonly prediction?: Int32Array | undefined
  /** null: none; k: log-probabilities of answer tokens with the k best alternatives. */
  readonly logprobs: number | null
  /** The same for the prompt's tokens (echo). */
  readonly promptLogprobs: number | null
  /**
   * The final hidden state, before the head, instead of an answer: that after the last token, or the mean of those after
   * each. With maxTokens 0 and cache 'no-store', for one choice without session or mixture.
   */
  readonly embedding?: Pooling | undefined
  /** The head that the hidden state goes through; for models that have some. */
  readonly embeddingTask?: EmbeddingTask | undefined
  /** A score of the prompt's last state instead of an answer, larger where more relevant; as an embedding, and not with one. */
  readonly isRanked?: boolean | undefined
  /** A tuned start state to begin with instead of the model's own, by name. */
  readonly startState?: string | undefined
  /**
   * Several start states instead of one (null: the model's own): each reads prompt and answer in a slot of its own, and
   * tokens are drawn from the sum of their logits, each times its weight. For one choice, without session, scores or cache.
   */
  readonly mixture?: readonly MixedState[] | undefined
  /** Whose states these are: nothing kept for one tenant is found by another. '' when absent. */
  readonly tenant?: string | undefined
  /** The tenant's part of a busy engine, against 1 for every other. */
  readonly share?: number | undefined
  /** A higher one is served before a lower one, and takes its slots; 0 when absent. */
  readonly priority?: number | undefined
  /** Bytes that the states of the tenant's sessions may take; the server's bound when absent. */
  readonly storedBytes?: number | undefined
  /** 'no-store': no cached state is looked up for this request and none is left behind. Default 'use'. */
  readonly cache?: 'use' | 'no-store' | undefined
  /** Ascending lengths of prompt prefixes that other prompts may share: the ends of messages. */
  readonly boundaries?: Int32Array | undefined
  /** Continue a session: `prompt` is then only what is new. n must be 1, promptLogprobs null, cache 'use'. */
  readonly session?: SessionUse | undefined
  /** With a session, where the two differ: the prompt instead if it turns out to have no turn to continue. */
  readonly promptAtBeginning?: Int32Array | undefined
}

/** How a request uses a session. Turns are numbered 1, 2, …; turn 0 is the empty state before any token. */
export interface SessionUse {
  readonly id: string
  readonly ifMissing: 'create' | 'error'
  /** The turn to continue from; the head when absent. The new turn becomes the head, the others stay. */
  readonly from?: number | undefined
  /** When another request is writing to the session. */
  readonly ifBusy: 'wait' | 'conflict'
  /** A cancelled answer: saves no turn, or one with the tokens drawn so far. */
  readonly onCancel: 'drop' | 'keep'
  /** `conflict` unless the session is at this version. */
  readonly ifVersion?: number | undefined
  /** Forget the session this long after its last turn; the server's default when absent. */
  readonly ttlSeconds?: number | undefined
  /**
   * Who asks, by a name of its own that is kept with the turn. Asked once more without `from`, it does not continue its own turn but
   * the one before that: the answer had become one, and nobody had seen it.
   */
  readonly origin?: string | undefined
  /** Kept with the turn that the answer becomes, for whoever reads it back; at most MAX_NOTE_BYTES. */
  readonly note?: string | undefined
}

export const MAX_NOTE_BYTES = 32 * 1024

/** A turn of a session, and the version of the session that it made or found. */
export interface SessionPosition {
  readonly id: string
  readonly turn: number
  readonly version: number
  /** The turn that this turn continued; 0: the beginning. */
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
      /** Which of a model's workers reads it. The gateway's router says so; an engine does not know. */
      readonly worker?: string
      /** The seed in use, the request's own or the one drawn for it. The engine always sets it. */
      readonly seed?: bigint
      /** Prompt tokens that were not computed, because a state that had consumed them was kept. 0 when absent. */
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
      /** Tokens drawn for this choice; the stopping token counts. */
      readonly completionTokens: number
      /** What became of guesses of its tokens, by who made them; absent when there were none. */
      readonly guesses?: GuessesBy
      /** The turn this answer became. Absent without a session, or when it was deleted meanwhile. */
      readonly session?: SessionPosition
    }
  /** The whole request failed; no further event of it follows. */
  | { readonly type: 'error'; readonly id: string; readonly error: ErrorShape }

/** Where the state of a turn is. */
type StateTier = 'device' | 'memory' | 'disk'

export interface TurnInfo {
  readonly turn: number
  /** The turn it continued; 0 for the first. */
  readonly parent: number
  /** Tokens of the conversation up to and with this turn. */
  readonly numTokens: number
  /** Milliseconds since 1970. */
  readonly createdAt: number
  readonly tier: StateTier
  /** Whether it would survive the end of the process. */
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
  /** What the head's request left beside it; of a session that is asked for by its id. */
  readonly note?: string | undefined
}

/** Names a session. A foreign tenant's is `not_found`. */
export interface SessionRef {
  readonly tenant: string
  readonly id: string
}

/**
 * What may be asked of an engine beside answers: one row per method. All fail with a SkeinError: not_found for an
 * unknown session or turn, conflict while a request writes to it, state_incompatible, state_unavailable.
 */
export interface EngineCalls {
  /** Most recently used first. `after` is the id of the last one of the page before. */
  'sessions.list': {
    params: {
      readonly tenant: string
      readonly limit?: number | undefined
      readonly after?: string | undefined
    }
    result: readonly SessionInfo[]
  }
  'sessions.get': { params: SessionRef; result: SessionInfo }
  /** A new session with the turns up to `turn` (default: the head) of an old one. `conflict` if `newId` exists. */
  'sessions.fork': {
    params: SessionRef & {
      readonly newId: string
      readonly turn?: number | undefined
      readonly storedBytes?: number | undefined
    }
    result: SessionInfo
  }
  /** Makes `turn` the head; 'undo' is the parent of the head. No turn is lost: rewinding forward is possible. */
  'sessions.rewind': {
    params: SessionRef & {
      readonly turn: number | 'undo'
      readonly ifVersion?: number | undefined
    }
    result: SessionInfo
  }
  /** From every tier; a request that is writing to it still answers and saves nothing. */
  'sessions.delete': { params: SessionRef; result: null }
  /**
   * Brings all of it to the store and forgets it in this worker, so that another one may continue it. Fine for a session
   * that this worker does not hold; state_unavailable where there is no store.
   */
  'sessions.release': { params: SessionRef; result: null }
  /** A turn (default: the head) as a self-describing file. */
  'sessions.export': {
    params: SessionRef & { readonly turn?: number | undefined }
    result: Uint8Array
  }
  /** Tokens of the conversation up to and with a turn: those from `start` to before `end`. */
  'sessions.tokens': {
    params: SessionRef & { readonly turn: number; readonly start: number; readonly end: number }
    result: Int32Array
  }
  /** A token by which other tenants may copy a turn (default: the head) for a while. */
  'sessions.share': {
    params: SessionRef & { readonly turn?: number | undefined; readonly seconds: number }
    result: { readonly token: string; readonly turn: number; readonly expiresAt: number }
  }
  /** A new session whose turn 1 is what the token was given for. */
  'sessions.open': {
    params: SessionRef & { readonly token: string; readonly storedBytes?: number | undefined }
    result: SessionInfo
  }
  /** A new session whose turn 1 is an exported state. `conflict` if the id exists. */
  'sessions.import': {
    params: SessionRef & {
      readonly bytes: Uint8Array
      readonly ttlSeconds?: number | undefined
      readonly storedBytes?: number | undefined
    }
    result: SessionInfo
  }
  /**
   * A file with a tuned start state. `conflict` if its name is taken, unless it may replace the one that has it. Names
   * that there are then.
   */
  'startStates.add': {
    params: {
      readonly name: string
      readonly path: string
      readonly replace?: boolean | undefined
    }
    result: readonly string[]
  }
  /** Requests that have asked for it already are answered with it. Names that are left. */
  'startStates.remove': { params: { readonly name: string }; result: readonly string[] }
}

export type EngineCall = keyof EngineCalls

/** One function for each method. */
export type CallHandlers = {
  readonly [M in EngineCall]: (
    params: EngineCalls[M]['params'],
  ) => EngineCalls[M]['result'] | Promise<EngineCalls[M]['result']>
}

/** What a client may learn of a loaded model. */
export interface EngineInfo {
  readonly model: ModelInfo
  readonly numSlots: number
  readonly maxWaiting: number
  readonly maxPromptTokens: number
  /** Names that a request's `startState` may be; none when absent. */
  readonly startStates?: readonly string[]
  /** How texts become embeddings here; absent where they do not. */
  readonly embeddings?: Pooling
  /** The heads of a model that was trained for embeddings. */
  readonly embeddingTasks?: readonly EmbeddingTask[]
  /** There is a reranker, which scores states. */
  readonly ranks?: true
  /** Absent: g1. */
  readonly toolTemplate?: ToolTemplate
}

/** gateway → worker */
export type ToWorker =
  | { readonly type: 'generate'; readonly request: GenerateRequest }
  | { readonly type: 'cancel'; readonly id: string }
  /** Asks for a sign of life, which is the counters. */
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
  /** What it does before it is ready, besides reading weights. */
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
