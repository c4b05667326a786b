/**
 * Skein as a library: a model in this process, without HTTP.
 *
 *   import { load } from 'skein'
 *   const llm = await load('demo')
 *   const { text } = await llm.answer('What is the capital of France?')
 *   for await (const piece of llm.generate('Once upon a time')) process.stdout.write(piece)
 *   await llm.close()
 *
 * Many calls may run at once; they share one batch.
 */
import { randomUUID } from 'node:crypto'
import { type Message, type Tool, type ToolCall, type ToolChoice, thinking } from './api/chat/conversation.ts'
import { prepareChat } from './api/chat/prepare.ts'
import { type ChoiceEnd, type PromptRead, type ReplyPiece, replyEvents, WholeReply } from './api/chat/reply.ts'
import { embedAll } from './api/embeddings/embeddings.ts'
import { checkChatOptions, checkTextOptions, conversationOf } from './api/library-options.ts'
import type { ServedModel } from './api/models.ts'
import { LocalEngineClient } from './engine/client/local-client.ts'
import type { EngineClient } from './engine/client.ts'
import {
  type EngineInfo,
  type FinishReason,
  type GenerateRequest,
  PLAIN_REQUEST,
  PLAIN_SAMPLING,
  type SamplingParams,
  type SessionInfo,
} from './engine/messages.ts'
import { invalid, SkeinError } from './errors.ts'
import { list } from './files/given.ts'
import { checkConstraint } from './grammar/check.ts'
import type { JsonSchema } from './grammar/constraint.ts'
import { checkChoice } from './host/checkpoints/checked-choice.ts'
import { modelPath } from './host/checkpoints/model-path.ts'
import { loadEngine } from './host/load.ts'
import type { EngineChoice } from './host/model-choice.ts'
import type { LoadProgress } from './model/weights.ts'
import { type SamplingOptions, samplingNumbers, stopsOf, type TextOptions } from './sampling.ts'
import type { Tokenizer } from './tokenizer/tokenizer.ts'

export type { Message, Tool, ToolCall, ToolChoice } from './api/chat/conversation.ts'
export type { ReplyPiece } from './api/chat/reply.ts'
export type { SessionInfo, TurnInfo } from './engine/messages.ts'
export type { JsonSchema } from './grammar/constraint.ts'
export type { EngineChoice } from './host/model-choice.ts'
export type { SamplingOptions, TextOptions } from './sampling.ts'
export { SkeinError }

/** How a text is continued. */
export interface GenerateOptions extends TextOptions {
  /** A name of `EngineChoice.startStates`. */
  readonly startState?: string | undefined
  /** Called with the number of tokens of each piece. */
  readonly onTokens?: ((count: number) => void) | undefined
}

/** Options of a chat besides those of `GenerateOptions`; `startState` is for raw prompts. */
export interface ChatOptions extends Omit<GenerateOptions, 'startState' | 'onTokens'> {
  /** Tools that the model may call. Excludes `schema`. */
  readonly tools?: readonly Tool[] | undefined
  /** Default `auto`. */
  readonly toolChoice?: ToolChoice | undefined
  /** Constrains the answer to JSON of this schema, token by token. */
  readonly schema?: JsonSchema | undefined
  /** Let the model think first (G1 models), which yields pieces of type `reasoning`. Default false. */
  readonly think?: boolean | undefined
  /** Name of the conversation: its state is kept, and `messages` holds only new messages. The first use creates it. */
  readonly session?: string | undefined
  /** With a session: the turn to continue from; absent: the last. Turn 0 is the start. */
  readonly from?: number | undefined
  /** With a session: throws `conflict` unless the session has this version, as reported by the previous reply. */
  readonly ifVersion?: number | undefined
}

export interface ChatReply {
  readonly text: string
  /** Empty if the model did not think. */
  readonly reasoning: string
  readonly calls: readonly ToolCall[]
  /** `calls`: the model calls tools; `length`: `maxTokens` was reached. */
  readonly reason: FinishReason | 'calls'
  readonly promptTokens: number
  /** Prompt tokens that were not read, thanks to a kept state. */
  readonly cachedTokens: number
  readonly completionTokens: number
  /** The session's turn with this answer; null without a session. */
  readonly turn: number | null
  /** The session's version after it. */
  readonly version: number | null
  /** The turn that it continued, 0 for the start: after a crash the session may continue from an older one. */
  readonly continued: number | null
}

/** Conversations by name. All methods except `list` throw `not_found` for an unknown one. */
export interface Sessions {
  /** Most recently used first. */
  list(): Promise<readonly SessionInfo[]>
  get(id: string): Promise<SessionInfo>
  /** Copies session `id` up to a turn (default: the last) as `newId`. Throws `conflict` if that exists. */
  fork(id: string, newId: string, turn?: number): Promise<SessionInfo>
  /** Makes a turn the last one; later turns stay. */
  rewind(id: string, turn: number): Promise<SessionInfo>
  /** The state of a turn as a file for `import`, here or on a server with the same model. */
  export(id: string, turn?: number): Promise<Uint8Array>
  import(id: string, bytes: Uint8Array): Promise<SessionInfo>
  delete(id: string): Promise<void>
}

export interface Llm {
  readonly info: EngineInfo
  readonly tokenizer: Tokenizer
  /** The engine itself, for callers that need tokens, log-probabilities or several answers. */
  readonly client: EngineClient
  readonly sessions: Sessions
  /** Continues a text; yields pieces of whole characters as they come. Leaving the loop, or `signal`, cancels it. */
  generate(prompt: string, options?: GenerateOptions): AsyncIterable<string>
  /** Answers a conversation, or one question, piece by piece. */
  chat(messages: string | readonly Message[], options?: ChatOptions): AsyncIterable<ReplyPiece>
  /** The same, as a whole. */
  answer(messages: string | readonly Message[], options?: ChatOptions): Promise<ChatReply>
  /** One vector of length 1 per text, for a model loaded with `embeddings: 'mean'` or `'last'`; throws for others. */
  embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>
  close(): Promise<void>
}

/**
 * Loads a model into this process: a file, the name of a pulled model, `demo`, or an `EngineChoice` with device,
 * weights, slots and more. Throws a SkeinError that says what to do.
 */
export async function load(
  choice: string | EngineChoice,
  options: { readonly onProgress?: LoadProgress | undefined } = {},
): Promise<Llm> {
  const given = typeof choice === 'string' ? { model: choice } : choice
  checkChoice(given)
  const { engine, tokenizer } = await loadEngine({ ...given, model: modelPath(given.model) }, options.onProgress)
  const client = new LocalEngineClient(engine)
  const model: Loaded = { id: 'model', created: 0, client, tokenizer }
  return {
    info: client.info,
    tokenizer,
    client,
    sessions: sessionsOf(client),
    generate: (prompt, given = {}) => pieces(client, requestOf(tokenizer, prompt, given), given),
    chat: (messages, given = {}) => chatPieces(model, messages, given),
    answer: (messages, given = {}) => answerOf(model, messages, given),
    embed: async (texts, signal = new AbortController().signal) => {
      if (list(texts) !== null) throw invalid('texts', 'expected a list')
      const tokens = texts.map((text) => tokenizer.encode(text))
      const call = { id: randomUUID(), tenant: OWN, signal }
      return (await embedAll(model, tokens, null, call)).vectors
    },
    close: () => client.close(),
  }
}

interface Loaded extends ServedModel {
  readonly tokenizer: Tokenizer
}

async function* pieces(client: EngineClient, request: GenerateRequest, { signal, onTokens }: GenerateOptions) {
  for await (const event of client.generate(request, signal)) {
    if (event.type !== 'text') continue
    onTokens?.(event.tokens.length)
    if (event.text !== '') yield event.text
  }
}

function requestOf(tokenizer: Tokenizer, prompt: string, options: GenerateOptions): GenerateRequest {
  checkTextOptions(options)
  return {
    ...PLAIN_REQUEST,
    id: randomUUID(),
    startState: options.startState,
    prompt: tokenizer.encode(prompt),
    maxTokens: options.maxTokens ?? 512,
    sampling: samplingOf(options),
    stop: { ...PLAIN_REQUEST.stop, strings: stopsOf(options) },
  }
}

function samplingOf(options: SamplingOptions & Pick<GenerateOptions, 'seed'>): SamplingParams {
  return {
    ...PLAIN_SAMPLING,
    ...samplingNumbers((name, row) => options[name] ?? row.ownDefault ?? row.off),
    seed: options.seed === undefined ? null : BigInt(options.seed),
  }
}

async function* replyTo(model: Loaded, messages: string | readonly Message[], options: ChatOptions) {
  checkChatOptions(options)
  const { tools = [], toolChoice = 'auto', schema, session, from, ifVersion } = options
  const constraint = schema === undefined ? null : ({ type: 'schema', schema } as const)
  if (constraint !== null) checkConstraint(constraint, 'schema')
  const { signal = new AbortController().signal } = options
  const chat = await prepareChat(conversationOf(messages, tools, toolChoice), {
    id: randomUUID(),
    n: 1,
    maxTokens: options.maxTokens ?? 512,
    sampling: samplingOf(options),
    logprobs: null,
    model,
    thinking: thinking(options.think === true ? 'open' : 'none'),
    stop: { strings: stopsOf(options), tokens: [], ignoreEos: false },
    constraint,
    session:
      session === undefined
        ? null
        : { id: session, from, ifVersion, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' },
    param: 'messages',
    signal,
  })
  yield* replyEvents(chat, signal)
}

async function* chatPieces(model: Loaded, messages: string | readonly Message[], options: ChatOptions) {
  for await (const event of replyTo(model, messages, options)) {
    if (event.type !== 'prompt') yield* event.pieces
  }
}

async function answerOf(
  model: Loaded,
  messages: string | readonly Message[],
  options: ChatOptions,
): Promise<ChatReply> {
  const reply = new WholeReply()
  let read: PromptRead = { type: 'prompt', promptTokens: 0, cachedTokens: 0 }
  let end: ChoiceEnd | undefined
  for await (const event of replyTo(model, messages, options)) {
    if (event.type === 'prompt') read = event
    else for (const piece of event.pieces) reply.add(piece)
    if (event.type === 'end') end = event
  }
  return {
    text: reply.text.trim(),
    reasoning: reply.reasoning.trim(),
    calls: reply.calls,
    // The events end when the only choice has ended; failures have thrown.
    reason: end!.reason,
    promptTokens: read.promptTokens,
    cachedTokens: read.cachedTokens,
    completionTokens: end!.completionTokens,
    turn: end!.session?.turn ?? null,
    version: end!.session?.version ?? null,
    continued: end!.session?.continued ?? null,
  }
}

/** The only tenant of a process. */
const OWN = ''

function sessionsOf(client: EngineClient): Sessions {
  const tenant = OWN
  return {
    list: async () => client.call('sessions.list', { tenant }),
    get: (id) => client.call('sessions.get', { tenant, id }),
    fork: (id, newId, turn) => client.call('sessions.fork', { tenant, id, newId, turn }),
    rewind: (id, turn) => client.call('sessions.rewind', { tenant, id, turn }),
    export: (id, turn) => client.call('sessions.export', { tenant, id, turn }),
    // The engine may move it to a thread.
    import: (id, bytes) => client.call('sessions.import', { tenant, id, bytes: bytes.slice() }),
    delete: async (id) => void (await client.call('sessions.delete', { tenant, id })),
  }
}
