/** The answer as items, and the events of a stream by which they grow. */
import type { ReplyPiece } from '../chat/reply.ts'

type Status = 'in_progress' | 'completed' | 'incomplete'

type Item =
  | { readonly type: 'reasoning'; text: string }
  | { readonly type: 'message'; text: string }
  | { readonly type: 'function_call'; readonly name: string; readonly call: number; text: string }

export class Output {
  readonly #response: string
  readonly #items: Item[] = []
  #isOpen = false
  #numCalls = 0

  constructor(response: string) {
    this.#response = response
  }

  /** What an answer that is whole already comes to. */
  static of(response: string, pieces: readonly ReplyPiece[]): object[] {
    const output = new Output(response)
    output.add(pieces)
    output.close('completed')
    return output.items('completed')
  }

  add(pieces: readonly ReplyPiece[]): object[] {
    return pieces.flatMap((piece) => {
      if (piece.type === 'call') {
        const call = this.#numCalls++
        return this.#open({ type: 'function_call', name: piece.name, call, text: '' })
      }
      if (piece.type === 'arguments') return this.#fill(piece.text)
      const type = piece.type === 'reasoning' ? 'reasoning' : 'message'
      const opened = this.#last?.type === type ? [] : this.#open({ type, text: '' })
      return [...opened, ...this.#fill(piece.text)]
    })
  }

  close(status: Status): object[] {
    if (!this.#isOpen) return []
    this.#isOpen = false
    const item = this.#last! // one is open
    const done = { type: 'response.output_item.done', item: this.#wire(this.#index, status) }
    if (item.type === 'function_call') {
      const { name, text } = item
      const end = { type: 'response.function_call_arguments.done', name, arguments: text }
      return [this.#within(end), this.#at(done)]
    }
    const end =
      item.type === 'message'
        ? { type: 'response.output_text.done', text: item.text, logprobs: [] }
        : { type: 'response.reasoning_text.done', text: item.text }
    const part = { type: 'response.content_part.done', part: partOf(item) }
    return [this.#inPart(end), this.#inPart(part), this.#at(done)]
  }

  items(status: Status): object[] {
    return this.#items.map((_item, i) => this.#wire(i, i === this.#index ? status : 'completed'))
  }

  get #index(): number {
    return this.#items.length - 1
  }

  get #last(): Item | undefined {
    return this.#items.at(-1)
  }

  #open(item: Item): object[] {
    const closed = this.close('completed')
    this.#items.push(item)
    this.#isOpen = true
    const added = { type: 'response.output_item.added', item: this.#wire(this.#index, 'in_progress') }
    if (item.type === 'function_call') return [...closed, this.#at(added)]
    const part = { type: 'response.content_part.added', part: partOf(item) }
    return [...closed, this.#at(added), this.#inPart(part)]
  }

  #fill(delta: string): object[] {
    const item = this.#last! // `add` has opened one
    item.text += delta
    if (item.type === 'message') return [this.#inPart({ type: 'response.output_text.delta', delta, logprobs: [] })]
    if (item.type === 'reasoning') return [this.#inPart({ type: 'response.reasoning_text.delta', delta })]
    return [this.#within({ type: 'response.function_call_arguments.delta', delta })]
  }

  #at(event: object): object {
    return { ...event, output_index: this.#index }
  }

  #within(event: object): object {
    return this.#at({ ...event, item_id: this.#id(this.#index) })
  }

  #inPart(event: object): object {
    return this.#within({ ...event, content_index: 0 })
  }

  #id(index: number): string {
    const { type } = this.#items[index]!
    const kind = type === 'message' ? 'msg' : type === 'reasoning' ? 'rs' : 'fc'
    return itemId(kind, this.#response, index)
  }

  #wire(index: number, status: Status): object {
    const item = this.#items[index]!
    const head = { id: this.#id(index), type: item.type, status }
    // An item that has only begun has no part yet.
    const content = item.text === '' && status === 'in_progress' ? [] : [partOf(item)]
    if (item.type === 'message') return { ...head, role: 'assistant', content }
    if (item.type === 'reasoning') return { ...head, summary: [], content }
    const { name, call, text } = item
    return { ...head, call_id: itemId('call', this.#response, call), name, arguments: text }
  }
}

function partOf({ type, text }: Item): object {
  if (type === 'reasoning') return { type: 'reasoning_text', text }
  return { type: 'output_text', text, annotations: [], logprobs: [] }
}

type ItemKind = 'msg' | 'rs' | 'fc' | 'call'

/** `call` is 32 hexadecimal digits. */
export function responseId(call: string): string {
  return `resp_${call}`
}

function itemId(kind: ItemKind, response: string, index: number): string {
  return `${kind}_${response.slice('resp_'.length)}_${index}`
}

/** The response that has the item; null for a name that is none of ours. */
export function responseOfItem(item: string): string | null {
  const match = /^(?:msg|rs|fc)_([0-9a-f]{32})_\d+$/.exec(item)
  return match === null ? null : responseId(match[1]!)
}
