/**
 * The answer to a chat as it streams: the engine's events become pieces of thought, text and calls, the same for every
 * dialect. The pieces of a choice add up to its whole message.
 */
import { randomBytes } from 'node:crypto'
import type { EngineEvent, FinishReason, GenerateRequest, SessionPosition, TokenText } from '../../engine/messages.ts'
import type { GuessesBy } from '../../engine/stats.ts'
import { mapped, runAll } from '../answers.ts'
import type { LiveCalls, LiveHandle } from '../live-calls.ts'
import type { ServedModel, TextCodec } from '../models.ts'
import type { ThinkMode } from '../template.ts'
import type { ToolCall } from './conversation.ts'
import { ThoughtSplitter } from './thought-splitter.ts'
import { type AnswerPiece, ToolSplitter } from './tool-splitter.ts'

/** How the text of an answer is to be read: as the prompt began it. */
export interface AnswerForm {
  readonly think: ThinkMode
  /** Null: no tools, and nothing in the text is a call. */
  readonly tools: { readonly names: readonly string[]; readonly isOpen: boolean } | null
}

export function plainForm(think: ThinkMode): AnswerForm {
  return { think, tools: null }
}

export interface PreparedChat {
  readonly model: ServedModel
  readonly request: GenerateRequest
  readonly form: AnswerForm
}

export type ReplyPiece =
  | { readonly type: 'reasoning' | 'text'; readonly text: string }
  /** A call begins: `call` counts those of the choice from 0. */
  | { readonly type: 'call'; readonly call: number; readonly id: string; readonly name: string }
  /** More of the JSON of its arguments. */
  | { readonly type: 'arguments'; readonly call: number; readonly text: string }

export type ReplyEvent =
  /** Once, before all others. */
  | PromptRead
  | {
      readonly type: 'pieces'
      readonly index: number
      readonly pieces: readonly ReplyPiece[]
      readonly numTokens: number
      /** One per token, where asked for. */
      readonly logprobs: readonly TokenText[] | null
    }
  | ChoiceEnd

export interface PromptRead {
  readonly type: 'prompt'
  readonly promptTokens: number
  readonly cachedTokens: number
}

export interface ChoiceEnd {
  readonly type: 'end'
  readonly index: number
  /** What was still held back. */
  readonly pieces: readonly ReplyPiece[]
  /** 'calls': it ended, and calls tools. */
  readonly reason: FinishReason | 'calls'
  /** What stopped it: the string, or the token id; null for length. */
  readonly matched: string | number | null
  readonly completionTokens: number
  readonly guesses: GuessesBy
  readonly reasoningTokens: number
  readonly session: SessionPosition | null
}

type TextEvent = Extract<EngineEvent, { type: 'text' }>
type FinishEvent = Extract<EngineEvent, { type: 'finish' }>

/** Runs the request. Ends when every choice has ended; throws what made it fail. */
export function replyEvents(
  { model, request, form }: PreparedChat,
  signal: AbortSignal,
): AsyncIterableIterator<ReplyEvent> {
  const readers = Array.from({ length: request.n }, () => new ReplyReader(form, model.tokenizer))
  return mapped(runAll(model.client, [request], signal), ({ event }): ReplyEvent => {
    if (event.type === 'prompt') {
      const { contextTokens = request.prompt.length, cachedTokens = 0 } = event
      return { type: 'prompt', promptTokens: contextTokens, cachedTokens }
    }
    const { index } = event
    const reader = readers[index]!
    if (event.type === 'finish') return reader.finish(event)
    const { tokens, logprobs } = event
    return { type: 'pieces', index, pieces: reader.read(event), numTokens: tokens.length, logprobs }
  })
}

class ReplyReader {
  readonly #thought: ThoughtSplitter
  /** Null where no tools were sent. */
  readonly #tools: ToolSplitter | null
  readonly #codec: TextCodec
  #reasoningTokens = 0
  readonly #calls: string[] = []

  constructor({ think, tools }: AnswerForm, codec: TextCodec) {
    this.#thought = new ThoughtSplitter(think)
    this.#tools = tools === null ? null : new ToolSplitter(tools.names, tools.isOpen)
    this.#codec = codec
  }

  read(event: TextEvent): ReplyPiece[] {
    const wasReasoning = this.#thought.isReasoning
    const { reasoning, content } = this.#thought.push(event.text)
    if (wasReasoning) this.#reasoningTokens += this.#numReasoning(event)
    return [...thoughtOf(reasoning), ...this.#split(content)]
  }

  finish(event: FinishEvent): ChoiceEnd {
    const { index, reason, matched, completionTokens, guesses = {}, session = null } = event
    const { reasoning, content } = this.#thought.end()
    const rest = (this.#tools?.end() ?? []).map((piece) => this.#numbered(piece))
    const pieces = [...thoughtOf(reasoning), ...this.#split(content), ...rest]
    const isCalling = reason === 'stop' && this.#calls.length > 0
    return {
      type: 'end',
      index,
      pieces,
      reason: isCalling ? 'calls' : reason,
      matched,
      completionTokens,
      guesses,
      reasoningTokens: this.#reasoningTokens,
      session,
    }
  }

  #split(content: string): ReplyPiece[] {
    if (content === '') return []
    if (this.#tools === null) return [{ type: 'text', text: content }]
    return this.#tools.push(content).map((piece) => this.#numbered(piece))
  }

  #numbered(piece: AnswerPiece): ReplyPiece {
    if (piece.type === 'text') return piece
    if (piece.type === 'call') {
      const id = `call_${randomBytes(12).toString('hex')}`
      return { ...piece, call: this.#calls.push(id) - 1, id }
    }
    return { ...piece, call: this.#calls.length - 1 }
  }

  /** An event has as many tokens as had gathered: some may be the answer's already. */
  #numReasoning({ text, tokens }: TextEvent): number {
    if (this.#thought.isReasoning) return tokens.length
    const thought = text.slice(0, text.length - this.#thought.numAfterThought)
    let left = Buffer.byteLength(thought)
    const first = tokens.findIndex((token) => {
      const isAfter = left <= 0
      left -= this.#codec.bytesOf(token).length
      return isAfter
    })
    return first < 0 ? tokens.length : first
  }
}

function thoughtOf(text: string): ReplyPiece[] {
  return text === '' ? [] : [{ type: 'reasoning', text }]
}

/** Where a chat came in, and what ends it. */
export interface LiveOptions {
  readonly live: LiveCalls
  readonly path: string
  readonly signal: AbortSignal
  /** What the client calls it; absent: as its reply does. */
  readonly name?: string | undefined
}

export function enterChat({ request, model }: PreparedChat, { live, path, signal, name }: LiveOptions): LiveHandle {
  const { tenant = '', n: numRows } = request
  const call = { id: name ?? request.id, tenant, path, model: model.id, numRows, canPause: false }
  return live.enter({ ...call, startedAt: Date.now() }, signal)
}

export async function* liveReply(chat: PreparedChat, where: LiveOptions): AsyncGenerator<ReplyEvent> {
  const handle = enterChat(chat, where)
  try {
    yield* replyEvents(chat, handle.signal)
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
}

/** The text of an answer so far. */
export class WholeReply {
  reasoning = ''
  text = ''
  readonly calls: ToolCall[] = []

  add(piece: ReplyPiece): void {
    switch (piece.type) {
      case 'reasoning':
        this.reasoning += piece.text
        break
      case 'text':
        this.text += piece.text
        break
      case 'call':
        this.calls.push({ id: piece.id, name: piece.name, arguments: '' })
        break
      case 'arguments': {
        const call = this.calls[piece.call]!
        this.calls[piece.call] = { ...call, arguments: call.arguments + piece.text }
      }
    }
  }
}
