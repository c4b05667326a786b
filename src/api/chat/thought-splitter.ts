/**
 * Splits the text of a chat answer, as it streams, into thought and answer, and removes what belongs to the
 * template and not to the answer: the space after "Assistant:", or the ">" and line breaks that end an open tag.
 * It holds back text only where it may be the beginning of "</think>".
 */
import type { ThinkMode } from '../template.ts'

interface ReplyPart {
  readonly reasoning: string
  readonly content: string
}

const CLOSE = '</think>'

type Phase =
  /** Nothing but template text so far. */
  | 'start'
  | 'reasoning'
  /** After "</think>": line breaks before the answer are dropped. */
  | 'gap'
  | 'content'

export class ThoughtSplitter {
  /** Of the text that ended the thought, the length of what came behind its closing tag. */
  numAfterThought = 0
  readonly #mode: ThinkMode
  #phase: Phase = 'start'
  #sawBracket = false
  /** Reasoning that may turn out to be the start of "</think>". */
  #held = ''

  constructor(mode: ThinkMode) {
    this.#mode = mode
  }

  get isReasoning(): boolean {
    return this.#mode === 'open' && (this.#phase === 'start' || this.#phase === 'reasoning')
  }

  push(text: string): ReplyPart {
    const rest = this.#phase === 'start' ? this.#dropLead(text) : text
    if (this.#phase === 'reasoning') return this.#pushReasoning(rest)
    return { reasoning: '', content: this.#pushContent(rest) }
  }

  /** What was still held back, at the end of the answer. */
  end(): ReplyPart {
    const reasoning = this.#held
    this.#held = ''
    return { reasoning, content: '' }
  }

  /** Drops template text from the very beginning; moves on once something else has come. */
  #dropLead(text: string): string {
    if (text === '') return ''
    if (this.#mode === 'none') {
      this.#phase = 'content'
      return text.startsWith(' ') ? text.slice(1) : text
    }
    let rest = text
    // A prompt that holds the whole empty thought leaves no ">" to the model.
    if (!this.#sawBracket && this.#mode !== 'done') {
      this.#sawBracket = true
      if (rest.startsWith('>')) rest = rest.slice(1)
    }
    rest = rest.replace(/^[\r\n]+/, '')
    if (rest !== '') this.#phase = this.#mode === 'open' ? 'reasoning' : 'content'
    return rest
  }

  #pushReasoning(text: string): ReplyPart {
    const all = this.#held + text
    const close = all.indexOf(CLOSE)
    if (close < 0) {
      const held = partialTag(all)
      this.#held = all.slice(all.length - held)
      return { reasoning: all.slice(0, all.length - held), content: '' }
    }
    this.#held = ''
    this.#phase = 'gap'
    const rest = all.slice(close + CLOSE.length)
    this.numAfterThought = rest.length
    const content = this.#pushContent(rest)
    return { reasoning: all.slice(0, close), content }
  }

  #pushContent(text: string): string {
    if (this.#phase !== 'gap') return text
    const rest = text.replace(/^[\r\n]+/, '')
    if (rest !== '') this.#phase = 'content'
    return rest
  }
}

/** Length of the longest end of `text` that "</think>" begins with. */
function partialTag(text: string): number {
  for (let length = Math.min(CLOSE.length - 1, text.length); length > 0; length--)
    if (text.endsWith(CLOSE.slice(0, length))) return length
  return 0
}
