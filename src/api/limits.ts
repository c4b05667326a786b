/**
 * The largest request a dialect accepts, in one table. Each bound becomes part of the wire schemas, so a violation is
 * refused before anything is queued, and `GET /v1/models` publishes the table. What the transport bounds (bytes of
 * a body, seconds of a header) is in `gateway/http/limits.ts`.
 */

export const DEFAULT_REQUEST_LIMITS = {
  /** Answers per prompt. */
  n: 16,
  prompts: 512,
  /** Texts of a request for embeddings, and documents of one to rank. */
  embeddingInputs: 2048,
  /** prompts × n: the sequences one request may ask for. */
  sequences: 1024,
  messages: 4096,
  /** Characters of one text to translate, and paragraphs of a request that are translated each by itself. */
  translatedCharacters: 65_536,
  translatedPieces: 4096,
  /** Stop strings, and stop token ids, per request. */
  stops: 64,
  /** Bytes of one stop string. */
  stopBytes: 256,
  topLogprobs: 20,
  /**
   * Log-probabilities of echoed prompts per request: tokens × answers × (1 + alternatives). They cross in parts
   * and are written in a thread.
   */
  promptLogprobs: 131_072,
  /**
   * Log-probabilities of answers in a reply that is not streamed: answers × max_tokens × (1 + alternatives). Each takes
   * some 20 bytes of the gateway until the last answer has ended.
   */
  answerLogprobs: 1_048_576,
  logitBias: 1024,
  /** Bytes of a file of requests, of all files of a key, and of one line. */
  fileBytes: 67_108_864,
  tenantFileBytes: 1_073_741_824,
  batchLineBytes: 8_388_608,
  /** Requests of a batch, and batches of a key that are not done; 0: no batches. */
  batchRequests: 50_000,
  tenantBatches: 16,
  /** Tokens of one answer. */
  maxTokens: 65_536,
  /** Tokens of an answer when a chat request names no limit; RWKV has no context window to fill. */
  defaultChatTokens: 4096,
  /** The same for completions; 16 is what the OpenAI API documents. */
  defaultCompletionTokens: 16,
} as const

export type RequestLimits = { readonly [K in keyof typeof DEFAULT_REQUEST_LIMITS]: number }
