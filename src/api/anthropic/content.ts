/** The answer as blocks: the events of a stream that open, fill and close them, and the blocks themselves at the end. */
import { argumentsIn } from '../chat/conversation.ts'
import type { ReplyPiece } from '../chat/reply.ts'

/** Clients send thoughts back with the signature they came with. Nothing here depends on it. */
const SIGNATURE = 'skein'

type Block =
  | { readonly type: 'thinking'; text: string }
  | { readonly type: 'text'; text: string }
  | { readonly type: 'tool_use'; readonly id: string; readonly name: string; text: string }

export class Content {
  readonly #blocks: Block[] = []
  readonly #showsThoughts: boolean
  #isOpen = false

  constructor(showsThoughts: boolean) {
    this.#showsThoughts = showsThoughts
  }

  add(pieces: readonly ReplyPiece[]): object[] {
    return pieces.flatMap((piece) => {
      if (piece.type === 'reasoning' && !this.#showsThoughts) return []
      if (piece.type === 'call') {
        const id = `toolu_${piece.id.replace(/^call_/, '')}`
        return this.#open({ type: 'tool_use', id, name: piece.name, text: '' })
      }
      const type = piece.type === 'reasoning' ? 'thinking' : piece.type
      const opened = type === 'arguments' || this.#last?.type === type ? [] : this.#open({ type, text: '' })
      return [...opened, this.#fill(piece.text)]
    })
  }

  close(): object[] {
    if (!this.#isOpen) return []
    this.#isOpen = false
    const stop = { type: 'content_block_stop', index: this.#index }
    if (this.#last?.type !== 'thinking') return [stop]
    return [this.#delta({ type: 'signature_delta', signature: SIGNATURE }), stop]
  }

  blocks(): object[] {
    return this.#blocks.map((block) => {
      if (block.type === 'text') return { type: 'text', text: block.text }
      if (block.type === 'thinking') return { type: 'thinking', thinking: block.text, signature: SIGNATURE }
      return { type: 'tool_use', id: block.id, name: block.name, input: argumentsIn(block.text) }
    })
  }

  get #index(): number {
    return this.#blocks.length - 1
  }

  get #last(): Block | undefined {
    return this.#blocks.at(-1)
  }

  #open(block: Block): object[] {
    const closed = this.close()
    this.#blocks.push(block)
    this.#isOpen = true
    return [...closed, { type: 'content_block_start', index: this.#index, content_block: emptyOf(block) }]
  }

  #fill(text: string): object {
    const block = this.#last! // `add` has opened one
    block.text += text
    if (block.type === 'text') return this.#delta({ type: 'text_delta', text })
    if (block.type === 'thinking') return this.#delta({ type: 'thinking_delta', thinking: text })
    return this.#delta({ type: 'input_json_delta', partial_json: text })
  }

  #delta(delta: object): object {
    return { type: 'content_block_delta', index: this.#index, delta }
  }
}

function emptyOf(block: Block): object {
  if (block.type === 'text') return { type: 'text', text: '' }
  if (block.type === 'thinking') return { type: 'thinking', thinking: '', signature: '' }
  return { type: 'tool_use', id: block.id, name: block.name, input: {} }
}
