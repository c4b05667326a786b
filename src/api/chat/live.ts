/** The answer to a chat that can be ended by its name, as events or folded into one whole. For dialects with one choice. */
import type { LiveCalls } from '../live-calls.ts'
import type { ToolCall } from './conversation.ts'
import {
  type ChoiceEnd,
  type PreparedChat,
  type PromptRead,
  type ReplyEvent,
  type ReplyPiece,
  replyEvents,
} from './reply.ts'

/** Where a chat came in, and what ends it. */
export interface LiveOptions {
  readonly live: LiveCalls
  readonly path: string
  readonly signal: AbortSignal
}

export async function* liveReply(chat: PreparedChat, { live, path, signal }: LiveOptions): AsyncGenerator<ReplyEvent> {
  const { id, tenant = '', n: numRows } = chat.request
  const call = { id, tenant, path, model: chat.model.id, numRows, canPause: false }
  const handle = live.enter({ ...call, startedAt: Date.now() }, signal)
  try {
    yield* replyEvents(chat, handle.signal)
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
}

/** What an answer has come to so far. */
export class WholeReply {
  reasoning = ''
  text = ''
  readonly calls: ToolCall[] = []
  read: PromptRead = { type: 'prompt', promptTokens: 0, cachedTokens: 0 }
  end: ChoiceEnd | null = null

  add(event: ReplyEvent): void {
    if (event.type === 'prompt') {
      this.read = event
      return
    }
    for (const piece of event.pieces) this.#addPiece(piece)
    if (event.type === 'end') this.end = event
  }

  #addPiece(piece: ReplyPiece): void {
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
