/**
 * One answer of a chat completion while it grows. It yields the deltas of a stream, or keeps the message of a reply
 * that is not streamed. Both are made of the same pieces, so the deltas add up to the message.
 */
import type { GenerateRequest, TokenText } from '../../engine/messages.ts'
import type { GuessesBy } from '../../engine/stats.ts'
import { type AnswerForm, type ChoiceEnd, type ReplyEvent, type ReplyPiece, WholeReply } from '../chat/reply.ts'
import { WRITTEN } from '../json-around.ts'
import { chatLogprob, Scores } from './logprobs.ts'

type PiecesEvent = Extract<ReplyEvent, { type: 'pieces' }>
type EndReason = 'stop' | 'length' | 'tool_calls'

interface ChatSettings {
  readonly request: Pick<GenerateRequest, 'logprobs'>
  readonly form: AnswerForm
  readonly chunkTokens: number
}

export class ChatChoice {
  readonly index: number
  /** All tokens drawn; known at the end. */
  completionTokens = 0
  guesses: GuessesBy = {}
  /** Tokens that arrived before the end of the thought; known at the end. */
  reasoningTokens = 0
  readonly #hasThought: boolean
  /** Of the message; null in a stream, and where none are asked for. */
  readonly scores: Scores | null
  /** Log-probabilities of tokens whose text is still held back; they leave with the next delta. */
  #pending: TokenText[] = []
  /** The message. Null: a stream has given its deltas away, and does not ask for it. */
  readonly #kept: WholeReply | null
  #reason: EndReason | null = null

  /** Pieces that wait until `#chunkTokens` have gathered. */
  #waiting: ReplyPiece[] = []
  #numWaiting = 0
  readonly #chunkTokens: number

  constructor(index: number, { request, form, chunkTokens }: ChatSettings, isKept: boolean) {
    this.index = index
    this.#chunkTokens = chunkTokens
    this.#hasThought = form.think === 'open'
    this.scores = request.logprobs !== null && isKept ? new Scores('chat') : null
    this.#kept = isKept ? new WholeReply() : null
  }

  role(): object {
    return this.#chunk({ role: 'assistant', content: '' }, null)
  }

  /** The text of an event that is no more than one delta of text, and needs no `add`; else null. */
  plainText({ pieces, logprobs }: PiecesEvent): string | null {
    const [piece] = pieces
    const isAlone = pieces.length === 1 && logprobs === null && this.#chunkTokens <= 1 && this.#kept === null
    return isAlone && piece?.type === 'text' ? piece.text : null
  }

  textDelta(text: string): object {
    return this.#chunk({ content: text }, null)
  }

  add({ pieces, numTokens, logprobs }: PiecesEvent): object[] {
    if (logprobs !== null && this.scores === null) this.#pending.push(...logprobs)
    this.#waiting.push(...pieces)
    this.#numWaiting += numTokens
    if (this.#chunkTokens > 1 && this.#numWaiting < this.#chunkTokens) return []
    return this.#deltas()
  }

  finish({ pieces, reason, completionTokens, reasoningTokens, guesses }: ChoiceEnd): object[] {
    this.guesses = guesses
    this.completionTokens = completionTokens
    this.reasoningTokens = reasoningTokens
    this.#reason = reason === 'calls' ? 'tool_calls' : reason
    this.#waiting.push(...pieces)
    const deltas = this.#deltas()
    if (this.#pending.length > 0) deltas.push(this.#chunk({ content: '' }, null))
    return [...deltas, this.#chunk({}, this.#reason)]
  }

  /** The entry of `choices` in a reply that is not streamed, without its `scores`. */
  message(): object {
    const { reasoning, text, calls: kept } = this.#kept ?? new WholeReply()
    const calls = kept.map(({ id, name, arguments: json }) => wireCall(id, name, json))
    const isCallAlone = calls.length > 0 && text === ''
    return {
      index: this.index,
      message: {
        role: 'assistant',
        content: isCallAlone ? null : text,
        refusal: null,
        ...(this.#hasThought ? { reasoning_content: reasoning } : {}),
        ...(calls.length > 0 ? { tool_calls: calls } : {}),
      },
      logprobs: this.scores === null ? null : { content: WRITTEN, refusal: null },
      finish_reason: this.#reason,
    }
  }

  /** One delta for each waiting piece: the end of a thought and the beginning of the answer are two. */
  #deltas(): object[] {
    const pieces = joined(this.#waiting)
    this.#waiting = []
    this.#numWaiting = 0
    for (const piece of pieces) this.#kept?.add(piece)
    return pieces.map((piece) => this.#chunk(deltaOf(piece), null))
  }

  #chunk(delta: object, reason: EndReason | null): object {
    const entries = this.#pending.map(chatLogprob)
    this.#pending = []
    return {
      index: this.index,
      delta,
      logprobs: entries.length > 0 ? { content: entries, refusal: null } : null,
      finish_reason: reason,
    }
  }
}

function wireCall(id: string, name: string, json: string): object {
  return { id, type: 'function', function: { name, arguments: json } }
}

function deltaOf(piece: ReplyPiece): object {
  switch (piece.type) {
    case 'reasoning':
      return { reasoning_content: piece.text }
    case 'text':
      return { content: piece.text }
    case 'call':
      return { tool_calls: [{ index: piece.call, ...wireCall(piece.id, piece.name, '') }] }
    case 'arguments':
      return { tool_calls: [{ index: piece.call, function: { arguments: piece.text } }] }
  }
}

/** Neighbours of one kind as one. */
function joined(pieces: readonly ReplyPiece[]): ReplyPiece[] {
  const all: ReplyPiece[] = []
  for (const piece of pieces) {
    const last = all.at(-1)
    const isMore = last?.type === piece.type && last.type !== 'call' && piece.type !== 'call'
    if (isMore) all[all.length - 1] = { ...last, text: last.text + piece.text }
    else all.push(piece)
  }
  return all
}
