/**
 * Splits the text of an answer, as it streams, into text for the user and calls of tools. A call is JSON with a `name` that
 * is one of the tools' and `arguments`, between ```json and ``` (behind the mark of vllm-rwkv's template, too) or between
 * the tags that other models use; a block of JSON that is none stays text. It holds back only what may yet be the beginning of a call, and the white space before one.
 */
export type AnswerPiece =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'call'; readonly name: string }
  | { readonly type: 'arguments'; readonly text: string }

interface Block {
  readonly opening: string
  /** May stand between the opening and the call. */
  readonly fence: string
  readonly closing: string
}

const FENCE = '```json'
const FENCED: Block = { opening: FENCE, fence: '', closing: '```' }
const BLOCKS: readonly Block[] = [
  { opening: '**Tool Call:**', fence: FENCE, closing: '```' },
  FENCED,
  { opening: '<tool_call>', fence: '', closing: '</tool_call>' },
]

const HEAD = /^\s*(?:\[\s*)?\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)/
/** Without white space. */
const HEAD_STARTS = ['{"name":"', '[{"name":"']
const MAX_HEAD = 1024

type Phase = 'text' | 'head' | 'arguments' | 'tail'

export class ToolSplitter {
  readonly #names: ReadonlySet<string>
  #phase: Phase = 'text'
  #block: Block = FENCED
  /** Text that is not decided on. */
  #held = ''
  /** What stands before a head, should it turn out to be none. */
  #before = ''
  /** Within arguments. */
  #depth = 0
  #isString = false
  #isEscaped = false
  /** White space behind a call is no text. */
  #isAfterCall = false

  /** `isOpen`: the prompt ends with the opening of a call. */
  constructor(names: readonly string[], isOpen: boolean) {
    this.#names = new Set(names)
    if (isOpen) this.#phase = 'head'
  }

  push(text: string): AnswerPiece[] {
    this.#held += text
    const pieces: AnswerPiece[] = []
    while (this.#step(pieces));
    return pieces
  }

  /** The rest, at the end of the answer. */
  end(): AnswerPiece[] {
    const pieces: AnswerPiece[] = []
    const rest = this.#held
    this.#held = ''
    if (this.#phase === 'head') this.#emit(pieces, this.#before + rest)
    if (this.#phase === 'text') this.#emit(pieces, rest)
    return pieces
  }

  /** Decides on some of the held text; false when more of it must come first. */
  #step(pieces: AnswerPiece[]): boolean {
    switch (this.#phase) {
      case 'text':
        return this.#readText(pieces)
      case 'head':
        return this.#readHead(pieces)
      case 'arguments':
        return this.#readArguments(pieces)
      case 'tail':
        return this.#readTail()
    }
  }

  #readText(pieces: AnswerPiece[]): boolean {
    const opened = BLOCKS.map((block) => ({ block, at: this.#held.indexOf(block.opening) }))
      .filter(({ at }) => at >= 0)
      .sort((a, b) => a.at - b.at)[0]
    if (opened === undefined) {
      const numKept = this.#held.length - numUndecided(this.#held)
      this.#emit(pieces, this.#held.slice(0, numKept))
      this.#held = this.#held.slice(numKept)
      return false
    }
    const end = opened.at + opened.block.opening.length
    const text = this.#held.slice(0, opened.at).trimEnd()
    this.#emit(pieces, text)
    this.#before = this.#held.slice(text.length, end)
    this.#held = this.#held.slice(end)
    this.#block = opened.block
    this.#phase = 'head'
    return true
  }

  #readHead(pieces: AnswerPiece[]): boolean {
    const numBefore = this.#numOfFence()
    const match = HEAD.exec(this.#held.slice(numBefore))
    if (match !== null && this.#names.has(match[1]!)) {
      this.#held = this.#held.slice(numBefore + match[0].length)
      this.#phase = 'arguments'
      pieces.push({ type: 'call', name: match[1]! })
      return true
    }
    if (match === null && this.#mayBeHead()) return false
    this.#emit(pieces, this.#before)
    this.#before = ''
    this.#phase = 'text'
    // The block is text to its end, and may have the beginnings of others in it.
    return true
  }

  #mayBeHead(): boolean {
    const { fence, closing } = this.#block
    const numBefore = this.#numOfFence()
    const rest = this.#held.slice(numBefore)
    if (rest.length > MAX_HEAD) return false
    if (numBefore === 0 && fence.startsWith(rest.trimStart())) return true
    if (rest.includes(closing)) return false
    const dense = rest.replaceAll(/\s/g, '')
    return HEAD_STARTS.some((start) => start.startsWith(dense) || dense.startsWith(start))
  }

  /** Length of the fence that stands before a head, with the white space before it; 0: there is none. */
  #numOfFence(): number {
    const { fence } = this.#block
    const start = this.#held.length - this.#held.trimStart().length
    return fence !== '' && this.#held.startsWith(fence, start) ? start + fence.length : 0
  }

  #readArguments(pieces: AnswerPiece[]): boolean {
    const end = this.#endOfValue()
    const text = this.#held.slice(0, end ?? this.#held.length)
    this.#held = this.#held.slice(text.length)
    if (text !== '') pieces.push({ type: 'arguments', text })
    if (end === null) return false
    this.#phase = 'tail'
    return true
  }

  /** Where the object of arguments ends in the held text; null: later. */
  #endOfValue(): number | null {
    for (let i = 0; i < this.#held.length; i++) {
      const unit = this.#held[i]!
      if (this.#isEscaped) this.#isEscaped = false
      else if (this.#isString) {
        if (unit === '\\') this.#isEscaped = true
        else if (unit === '"') this.#isString = false
      } else if (unit === '"') this.#isString = true
      else if (unit === '{' || unit === '[') this.#depth++
      else if (unit === '}' || unit === ']') {
        this.#depth--
        if (this.#depth === 0) return i + 1
      }
    }
    return null
  }

  /** The end of the call, and of the block or the beginning of its next call. */
  #readTail(): boolean {
    const next = /^\s*\}\s*,\s*(?=\{)/.exec(this.#held)
    const closing = this.#held.indexOf(this.#block.closing)
    if (next !== null) {
      this.#held = this.#held.slice(next[0].length)
      this.#before = ''
      this.#phase = 'head'
      return true
    }
    if (closing < 0) return false
    this.#held = this.#held.slice(closing + this.#block.closing.length)
    this.#isAfterCall = true
    this.#phase = 'text'
    return true
  }

  #emit(pieces: AnswerPiece[], text: string): void {
    const rest = this.#isAfterCall ? text.trimStart() : text
    if (rest === '') return
    this.#isAfterCall = false
    pieces.push({ type: 'text', text: rest })
  }
}

/** Length of the end of the text that may belong to a call: the beginning of an opening, and white space before it. */
function numUndecided(text: string): number {
  let start = text.length
  for (const { opening } of BLOCKS) {
    for (let length = Math.min(opening.length - 1, text.length); length > 0; length--) {
      if (!text.endsWith(opening.slice(0, length))) continue
      start = Math.min(start, text.length - length)
      break
    }
  }
  return text.length - text.slice(0, start).trimEnd().length
}
