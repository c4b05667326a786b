/** How much one engine may take on, and how it works. */
import { SkeinError } from '../errors.ts'
import type { EmbeddingHeads } from './answer/embedding-sum.ts'
import { type ScoreRows, scoreRows } from './answer/logprobs.ts'
import type { Reranker } from './answer/ranking.ts'
import type { Pooling, ToolTemplate } from './messages.ts'
import type { ProposerSource } from './speculation/proposer.ts'

export interface EngineLimits {
  /** Requests in the waiting line; the next one is refused with queue_full. Null: as many as suit the slots. */
  readonly maxWaiting: number | null
  readonly maxPromptTokens: number
  /** Prompt tokens of a step while answers are being generated; null: as many as `itlTargetMs` allows. */
  readonly prefillChunk: number | null
  /** Milliseconds that such a step should take; null: what suits the runner. */
  readonly itlTargetMs: number | null
  /** Memory for states of answers that give their slots to others for a while; 0: none does. */
  readonly preemptBytes: number
  /**
   * Guess the next tokens of answers, so that a step draws several. For each answer the first one with a guess is used.
   */
  readonly proposers: readonly ProposerSource[]
  /** Fill freed slots with NaN, so that a use after free fails loudly. For tests and debugging. */
  readonly poisonFreedSlots: boolean
  /** Which hidden states embeddings are made of; clients are told. Null: embeddings are not offered. */
  readonly embeddings: Pooling | null
  /** Heads of a model that was trained for embeddings. */
  readonly embeddingHeads: EmbeddingHeads
  /** Scores states; null: the engine ranks nothing. */
  readonly reranker: Reranker | null
  /** Computes the log-probabilities of prompts. */
  readonly scoreRows: ScoreRows
  /** Clients are told. */
  readonly toolTemplate: ToolTemplate
  /** Milliseconds of the clock by which steps are timed. */
  readonly now: () => number
}

export const DEFAULT_LIMITS: EngineLimits = {
  maxWaiting: null,
  maxPromptTokens: 131_072,
  prefillChunk: null,
  itlTargetMs: null,
  preemptBytes: 2 ** 30,
  proposers: [],
  poisonFreedSlots: Boolean(process.env.SKEIN_DEBUG),
  embeddings: null,
  embeddingHeads: new Map(),
  reranker: null,
  scoreRows,
  toolTemplate: 'g1',
  now: () => performance.now(),
}

/** Eight answers' time is what the last in line waits for, and what a full line takes to become empty. */
const WAITING_PER_SLOT = 8
/** Clients that send a few hundred at once are not to be refused by few slots. */
const LEAST_WAITING = 512

export function lineLength(maxWaiting: number | null, numSlots: number): number {
  return maxWaiting ?? Math.max(LEAST_WAITING, WAITING_PER_SLOT * numSlots)
}

export function lineFull(maxWaiting: number): SkeinError {
  const message = `${maxWaiting} requests are waiting, which is the limit; retry later, or raise it (--max-waiting)`
  return new SkeinError('queue_full', message)
}
