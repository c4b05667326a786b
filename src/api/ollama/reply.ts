/** An answer in Ollama's objects: one, or one for each piece and a last one that counts. Each route shapes them its own way. */

import type { FinishReason } from '../../engine/messages.ts'
import type { ToolCall } from '../chat/conversation.ts'
import { type LiveOptions, liveReply, type PreparedChat, type ReplyPiece, WholeReply } from '../chat/reply.ts'
import { WRITTEN } from '../json-around.ts'
import { chatLogprob, Scores } from '../openai/logprobs.ts'
import { json, longJson, type Reply } from '../route.ts'

export interface Part {
  readonly reasoning: string
  readonly text: string
  readonly calls: readonly ToolCall[]
}

/** An object of the reply: a part of the answer, and the fields that all of them may have. */
type Shape = (part: Part, rest: object) => object

const NOTHING: Part = { reasoning: '', text: '', calls: [] }

export async function replyOf(chat: PreparedChat, where: LiveOptions, isStream: boolean, shape: Shape): Promise<Reply> {
  if (isStream) return { kind: 'events', events: streamed(chat, where, shape) }
  return await whole(chat, where, shape)
}

async function whole(chat: PreparedChat, where: LiveOptions, shape: Shape): Promise<Reply> {
  const figures = new Figures()
  const scores = new Scores('chat')
  const reply = new WholeReply()
  let last: object = {}
  for await (const event of liveReply(chat, where)) {
    if (event.type === 'prompt') {
      figures.read(event.promptTokens)
      continue
    }
    for (const piece of event.pieces) reply.add(piece)
    if (event.type === 'pieces') await scores.add(event.logprobs ?? [])
    else last = figures.end(event.reason, event.completionTokens)
  }
  if (chat.request.logprobs === null) return json(shape(reply, last))
  return longJson(shape(reply, { logprobs: WRITTEN, ...last }), [await scores.json()])
}

async function* streamed(chat: PreparedChat, where: LiveOptions, shape: Shape): AsyncGenerator<object> {
  const figures = new Figures()
  const reply = new WholeReply()
  for await (const event of liveReply(chat, where)) {
    if (event.type === 'prompt') {
      figures.read(event.promptTokens)
      continue
    }
    for (const piece of event.pieces) reply.add(piece)
    const logprobs = event.type === 'pieces' ? (event.logprobs ?? []).map(chatLogprob) : []
    const text = textOf(event.pieces, 'text')
    const reasoning = textOf(event.pieces, 'reasoning')
    if (text !== '' || reasoning !== '' || logprobs.length > 0) {
      const scores = logprobs.length === 0 ? {} : { logprobs }
      yield shape({ ...NOTHING, text, reasoning }, { ...scores, done: false })
    }
    if (event.type !== 'end') continue
    // Clients take a call whole.
    const called = reply.calls
    if (called.length > 0) yield shape({ ...NOTHING, calls: called }, { done: false })
    yield shape(NOTHING, figures.end(event.reason, event.completionTokens))
  }
}

function textOf(pieces: readonly ReplyPiece[], type: 'text' | 'reasoning'): string {
  return pieces.map((piece) => (piece.type === type ? piece.text : '')).join('')
}

/** The counts in the last object of an answer: tokens, and nanoseconds of reading and answering. */
export class Figures {
  readonly #began = performance.now()
  #readAt: number | null = null
  promptTokens = 0

  read(promptTokens: number): void {
    this.promptTokens = promptTokens
    this.#readAt = performance.now()
  }

  end(reason: FinishReason | 'calls', completionTokens: number): object {
    const ended = performance.now()
    const readAt = this.#readAt ?? ended
    return {
      done: true,
      done_reason: reason === 'length' ? 'length' : 'stop',
      total_duration: nanoseconds(ended - this.#began),
      load_duration: 0,
      prompt_eval_count: this.promptTokens,
      prompt_eval_duration: nanoseconds(readAt - this.#began),
      eval_count: completionTokens,
      eval_duration: nanoseconds(ended - readAt),
    }
  }
}

function nanoseconds(milliseconds: number): number {
  return Math.round(1e6 * milliseconds)
}
