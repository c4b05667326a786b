/**
 * One answer of a chat completion while it grows: feeds the engine's events to the splitter, and yields the deltas of a
 * stream or keeps the message of a reply that is not streamed. Both come from the same pieces, so the deltas of a
 * stream add up to the message.
 */
import type {
  EngineEvent,
  FinishReason,
  GenerateRequest,
  TokenText,
} from '../../engine/messages.ts'
import type { ServedModel, TextCodec } from '../models.ts'
import { type ReplyPart, ReplySplitter } from '../reply-splitter.ts'
import type { ThinkMode } from '../template.ts'
import { chatLogprob } from './logprobs.ts'

type TextEvent = Extract<EngineEvent, { type: 'text' }>
type FinishEvent = Extract<EngineEvent, { type: 'finish' }>

interface ChatSettings {
  readonly request: Pick<GenerateRequest, 'logprobs'>
  readonly think: ThinkMode
  readonly chunkTokens: number
  readonly model: Pick<ServedModel, 'tokenizer'>
}

const NOTHING: ReplyPart = { reasoning: '', content: '' }

/** A thought never follows an answer, so neither loses its place. */
function joined(a: ReplyPart, b: ReplyPart): ReplyPart {
  return { reasoning: a.reasoning + b.reasoning, content: a.content + b.content }
}

export class ChatChoice {
  readonly index: number
  /** All tokens drawn; known at the end. */
  completionTokens = 0
  /** Tokens that arrived before the end of the thought. */
  reasoningTokens = 0
  readonly #think: ThinkMode
  readonly #splitter: ReplySplitter
  readonly #codec: TextCodec
  readonly #logprobs: object[] | null
  /** Log-probabilities of tokens whose text is still held back; they leave with the next delta. */
  #pending: TokenText[] = []
  #reasoning = ''
  #content = ''
  #reason: FinishReason | null = null

  /** What waits until `#chunkTokens` have gathered. */
  #waiting: ReplyPart = NOTHING
  #numWaiting = 0
  readonly #chunkTokens: number
  readonly #isKept: boolean

  /** Not kept: a stream has given its deltas away, and does not ask for the message. */
  constructor(
    index: number,
    { request, think, chunkTokens, model }: ChatSettings,
    isKept: boolean,
  ) {
    this.index = index
    this.#chunkTokens = chunkTokens
    this.#think = think
    this.#splitter = new ReplySplitter(think)
    this.#codec = model.tokenizer
    this.#logprobs = request.logprobs !== null && isKept ? [] : null
    this.#isKept = isKept
  }

  /** The first chunk of the stream. */
  role(): object {
    return this.#chunk({ role: 'assistant', content: '' }, null)
  }

  add(event: TextEvent): object[] {
    const wasReasoning = this.#splitter.isReasoning
    if (event.logprobs !== null) this.#pending.push(...event.logprobs)
    this.#waiting = joined(this.#waiting, this.#splitter.push(event.text))
    if (wasReasoning) this.reasoningTokens += this.#numReasoning(event)
    this.#numWaiting += event.tokens.length
    if (this.#chunkTokens > 1 && this.#numWaiting < this.#chunkTokens) return []
    return this.#deltas(this.#takeWaiting(), false)
  }

  finish(event: FinishEvent): object[] {
    this.completionTokens = event.completionTokens
    this.#reason = event.reason
    const gathered = this.#deltas(this.#takeWaiting(), false)
    const rest = this.#deltas(this.#splitter.end(), true)
    return [...gathered, ...rest, this.#chunk({}, event.reason)]
  }

  /** The entry of `choices` in a reply that is not streamed. */
  message(): object {
    const reasoning = this.#think === 'open' ? { reasoning_content: this.#reasoning } : {}
    return {
      index: this.index,
      message: { role: 'assistant', content: this.#content, refusal: null, ...reasoning },
      logprobs: this.#logprobs === null ? null : { content: this.#logprobs, refusal: null },
      finish_reason: this.#reason,
    }
  }

  /** An event has as many tokens as had gathered: some may be the answer's already. */
  #numReasoning({ text, tokens }: TextEvent): number {
    if (this.#splitter.isReasoning) return tokens.length
    const thought = text.slice(0, text.length - this.#splitter.numAfterThought)
    let left = Buffer.byteLength(thought)
    const first = tokens.findIndex((token) => {
      const isAfter = left <= 0
      left -= this.#codec.bytesOf(token).length
      return isAfter
    })
    return first < 0 ? tokens.length : first
  }

  #takeWaiting(): ReplyPart {
    const part = this.#waiting
    this.#waiting = NOTHING
    this.#numWaiting = 0
    return part
  }

  /** A piece may hold the end of the thought and the beginning of the answer: two deltas. */
  #deltas({ reasoning, content }: ReplyPart, isLast: boolean): object[] {
    if (this.#isKept) {
      this.#reasoning += reasoning
      this.#content += content
    }
    const deltas: object[] = []
    if (reasoning !== '') deltas.push(this.#chunk({ reasoning_content: reasoning }, null))
    if (content !== '') deltas.push(this.#chunk({ content }, null))
    if (isLast && this.#pending.length > 0) deltas.push(this.#chunk({ content: '' }, null))
    return deltas
  }

  #chunk(delta: object, reason: FinishReason | null): object {
    const entries = this.#pending.map(chatLogprob)
    this.#pending = []
    this.#logprobs?.push(...entries)
    return {
      index: this.index,
      delta,
      logprobs: entries.length > 0 ? { content: entries, refusal: null } : null,
      finish_reason: reason,
    }
  }
}
