/**
 * Tools in a session's text: the list, the calls and the results that the template made text of, as what they were. Turns are
 * read in their order, since results answer the calls of the turn before.
 */
import type { Tool } from '../chat/conversation.ts'
import { callsIn, readToolList, resultsIn } from '../chat/tool-text.ts'
import type { TranscriptMessage } from './transcript.ts'

interface ToolCallRead {
  readonly id: string
  readonly type: 'function'
  readonly function: { readonly name: string; readonly arguments: string }
}

type ReadMessage =
  | (TranscriptMessage & { readonly tool_calls?: readonly ToolCallRead[] })
  | { readonly role: 'tool'; readonly tool_call_id: string; readonly content: string }

export interface ReadTurn {
  readonly messages: readonly ReadMessage[]
  /** Those that were told in it; the model may call those of earlier turns. */
  readonly tools: readonly Tool[]
}

export class ToolTurns {
  /** Ids of the calls of the last answer. */
  #open: readonly string[] = []
  #numCalls = 0
  /** Told last. */
  #tools: readonly Tool[] = []

  read(messages: readonly TranscriptMessage[]): ReadTurn {
    let tools: readonly Tool[] = []
    const read = messages.flatMap((message): ReadMessage[] => {
      if (message.role === 'system') {
        const list = readToolList(message.content)
        if (list === null) return [message]
        tools = list.tools
        this.#tools = tools
        return list.content === '' ? [] : [{ ...message, content: list.content }]
      }
      if (message.role === 'tool') return [this.#result(message.content)]
      return message.role === 'user' ? this.#asked(message) : [this.#said(message)]
    })
    return { messages: read, tools }
  }

  #result(content: string): ReadMessage {
    const [id = '', ...others] = this.#open
    this.#open = others
    return { role: 'tool', tool_call_id: id, content }
  }

  #asked(message: TranscriptMessage): ReadMessage[] {
    const ids = this.#open
    this.#open = []
    const results = resultsIn(message.content, ids.length)
    if (results === null) return [message]
    return results.map((content, i) => ({ role: 'tool', tool_call_id: ids[i]!, content }))
  }

  #said(message: TranscriptMessage): ReadMessage {
    const { text, calls } = callsIn(message.content, this.#tools)
    const made = calls.map((called): ToolCallRead => {
      return { id: `call_${++this.#numCalls}`, type: 'function', function: called }
    })
    this.#open = made.map(({ id }) => id)
    return made.length === 0 ? message : { ...message, content: text, tool_calls: made }
  }
}
