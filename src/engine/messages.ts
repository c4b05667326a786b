/**
 * What crosses between the gateway and a worker: plain objects, one message per step each way. The same types are
 * used when the engine runs in the caller's own process. No classes, no functions, no tensors.
 */
import type { ErrorShape } from '../errors.ts'
import type { ModelInfo, TokenLogprob } from '../model/runner.ts'

/** How tokens are drawn; wire dialects fill every field from their own defaults. */
export interface SamplingParams {
  /** 0 = greedy. */
  readonly temperature: number
  /** 0 = off, 1 = greedy. */
  readonly topK: number
  /** 1 = off, 0 = greedy. */
  readonly topP: number
  readonly minP: number
  readonly presencePenalty: number
  readonly frequencyPenalty: number
  /** Factor on the counts before each new token; 1 = no decay (OpenAI). */
  readonly penaltyDecay: number
  /** 1 = off. Counts prompt and answer. */
  readonly repetitionPenalty: number
  /** Null: the engine draws one and reports it. Unsigned 64 bit. */
  readonly seed: bigint | null
  readonly logitBias: readonly (readonly [token: number, bias: number])[]
  readonly bannedTokens: readonly number[]
}

export interface StopParams {
  /** Matched on decoded text, across tokens; the earliest match wins and is never emitted. */
  readonly strings: readonly string[]
  /** Matched on ids; the stopping token is never emitted. Token 0 (end of text) is one unless ignoreEos. */
  readonly tokens: readonly number[]
  readonly ignoreEos: boolean
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
  /** null: none; k: log-probabilities of answer tokens with the k best alternatives. */
  readonly logprobs: number | null
  /** Likewise for the prompt's tokens (echo). */
  readonly promptLogprobs: number | null
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
      /** The seed in use, the request's own or the one drawn for it. The engine always sets it. */
      readonly seed?: bigint
      readonly logprobs: readonly (TokenText | null)[] | null
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
    }
  /** The whole request failed; no further event of it follows. */
  | { readonly type: 'error'; readonly id: string; readonly error: ErrorShape }

/** Live counters of an engine; monotonic unless said otherwise. */
export interface EngineStats {
  /** Requests in line, now. */
  readonly waiting: number
  /** Requests holding slots, now. */
  readonly running: number
  readonly numSlots: number
  /** Now. */
  readonly freeSlots: number
  readonly steps: number
  readonly promptTokens: number
  readonly generatedTokens: number
  /** Answers, by how they ended. */
  readonly finishedStop: number
  readonly finishedLength: number
  /** Requests cancelled. */
  readonly aborted: number
  /** Requests that got an error event. */
  readonly failed: number
  /** Tokens of the last step. */
  readonly lastBatchTokens: number
  /** Seconds spent inside steps. */
  readonly busySeconds: number
}

/** What a client may learn of a loaded model. */
export interface EngineInfo {
  readonly model: ModelInfo
  readonly numSlots: number
  readonly maxWaiting: number
  readonly maxPromptTokens: number
}

/** gateway → worker */
export type ToWorker =
  | { readonly type: 'generate'; readonly request: GenerateRequest }
  | { readonly type: 'cancel'; readonly id: string }
  /** drain: answer what is live first and take no more; otherwise live requests get an error event. */
  | { readonly type: 'shutdown'; readonly drain?: boolean }

/** worker → gateway */
export type FromWorker =
  | { readonly type: 'progress'; readonly doneBytes: number; readonly totalBytes: number }
  | { readonly type: 'ready'; readonly info: EngineInfo }
  | {
      readonly type: 'step'
      readonly events: readonly EngineEvent[]
      readonly stats: EngineStats
    }
  | { readonly type: 'fatal'; readonly error: ErrorShape }
