/**
 * One request of a load, from its first byte to the last of its reply, with the time of each piece of text. Times are
 * milliseconds since the request was sent. It knows nothing of other requests.
 */
import { parsedJson } from '../../files/bytes.ts'
import { errorOf, isDone, type Piece, readReply, type Usage } from './endpoints.ts'
import { ExchangeError, type HttpClient, type Reply, readText } from './http-client.ts'

/** One answer of a request; a batch has several. */
export interface AnswerTimes {
  text: string
  /** Pieces of text that came; in a stream each is a token, or the few tokens that complete a character. */
  pieces: number
  /** When the first and the last piece came; null without a stream. */
  firstMs: number | null
  lastMs: number | null
  /** Times between consecutive pieces. */
  readonly gapsMs: number[]
}

interface Failure {
  readonly reason: string
  readonly message: string
}

export interface Exchange {
  readonly answers: readonly AnswerTimes[]
  readonly usage: Usage | null
  readonly failure: Failure | null
  readonly endMs: number
}

interface Ask {
  readonly path: string
  readonly body: object
  readonly isStream: boolean
  readonly numAnswers: number
}

export async function exchange(client: HttpClient, ask: Ask): Promise<Exchange> {
  const reading = new Reading(ask.numAnswers)
  let failure: Failure | null = null
  try {
    const reply = await client.send(ask.path, ask.body)
    if (reply.status !== 200) throw await refusal(reply)
    // conRWKV labels a whole reply an event stream; other servers send a whole reply although a stream was requested.
    if (ask.isStream && !reply.isJson) await reading.readStream(reply)
    else reading.takeWhole(await readText(reply))
  } catch (thrown) {
    failure = failureOf(thrown)
  }
  return { answers: reading.answers, usage: reading.usage, failure, endMs: reading.now() }
}

class Reading {
  readonly answers: readonly AnswerTimes[]
  usage: Usage | null = null
  readonly #startedAt = performance.now()
  readonly #ended = new Set<number>()
  #isDone = false

  constructor(numAnswers: number) {
    this.answers = Array.from({ length: numAnswers }, () => ({
      text: '',
      pieces: 0,
      firstMs: null,
      lastMs: null,
      gapsMs: [],
    }))
  }

  now(): number {
    return performance.now() - this.#startedAt
  }

  /** A stream that ends without its mark, and without a finish reason for every answer, was cut. */
  async readStream(reply: Reply): Promise<void> {
    const parser = new SseParser()
    let broken: unknown = null
    // An error inside a data handler would end the process, so it is thrown at the end of the body.
    const takeAll = (events: readonly string[]) => {
      const now = this.now()
      try {
        if (broken === null) for (const data of events) this.#takeEvent(data, now)
      } catch (thrown) {
        broken = thrown
      }
    }
    await reply.read((bytes) => takeAll(parser.push(bytes)))
    takeAll(parser.end())
    if (broken !== null) throw broken
    if (!this.#isDone && this.#ended.size < this.answers.length)
      throw new ExchangeError('cut stream', 'the stream ended before its last event')
  }

  #takeEvent(data: string, now: number): void {
    if (isDone(data)) {
      this.#isDone = true
      return
    }
    for (const { answer, text, isEnd } of this.#parse(data)) {
      const times = this.#answer(answer)
      if (isEnd) this.#ended.add(answer)
      if (text === '') continue
      times.text += text
      times.pieces++
      times.firstMs ??= now
      if (times.lastMs !== null) times.gapsMs.push(now - times.lastMs)
      times.lastMs = now
    }
  }

  takeWhole(body: string): void {
    for (const { answer, text } of this.#parse(body)) {
      this.#answer(answer).text += text
      this.#ended.add(answer)
    }
    const { length } = this.answers
    if (this.#ended.size < length)
      throw new ExchangeError('bad reply', `${this.#ended.size} of ${length} answers: ${excerpt(body)}`)
  }

  #parse(data: string): readonly Piece[] {
    const said = readReply(parsedJson(data))
    if (said === null) throw new ExchangeError('bad reply', `no JSON object: ${excerpt(data)}`)
    if (said.error !== null) throw new ExchangeError('error in reply', said.error)
    this.usage = said.usage ?? this.usage
    return said.pieces
  }

  #answer(index: number): AnswerTimes {
    const answer = this.answers[index]
    if (answer === undefined)
      throw new ExchangeError('bad reply', `answer ${index}, where ${this.answers.length} were asked`)
    return answer
  }
}

async function refusal(reply: Reply): Promise<ExchangeError> {
  const body = await readText(reply)
  const fields = parsedJson(body)
  // A JSON value without the field gives undefined.
  const { error, detail } = (Object(fields) ?? {}) as { error?: unknown; detail?: unknown }
  return new ExchangeError(`http ${reply.status}`, errorOf(error ?? detail) ?? excerpt(body))
}

function failureOf(thrown: unknown): Failure {
  if (!(thrown instanceof ExchangeError)) throw thrown
  return { reason: thrown.reason, message: thrown.message }
}

function excerpt(text: string): string {
  return text.length > 200 ? `${text.slice(0, 200)}…` : text
}

/**
 * Parses server-sent events from pieces of any size: a piece may end within a line, a line end or a character. It
 * follows the WHATWG rules, except that an event without its final blank line counts when the stream ends (conRWKV ends
 * so). Only `data` is read.
 */
export class SseParser {
  readonly #decoder = new TextDecoder()
  /** An unfinished line. */
  #pending = ''
  /** Data lines of the current event; null before the first. */
  #data: string | null = null

  /** The data of the events that these bytes complete. */
  push(bytes: Uint8Array): string[] {
    return this.#read(this.#decoder.decode(bytes, { stream: true }))
  }

  /** The data of an event that the end of the stream completes. */
  end(): string[] {
    return this.#read(`${this.#decoder.decode()}\n\n`)
  }

  #read(text: string): string[] {
    const events: string[] = []
    this.#pending += text
    // A carriage return at the end may be half of a CRLF, so it waits for the next bytes.
    const lines = this.#pending.split(/\r\n|\n|\r(?!$)/)
    this.#pending = lines.pop() ?? ''
    for (const line of lines) this.#takeLine(line, events)
    return events
  }

  #takeLine(line: string, events: string[]): void {
    if (line === '') {
      if (this.#data !== null) events.push(this.#data)
      this.#data = null
      return
    }
    const match = /^data(?:: ?(.*))?$/s.exec(line)
    if (!match) return
    const value = match[1] ?? ''
    this.#data = this.#data === null ? value : `${this.#data}\n${value}`
  }
}
