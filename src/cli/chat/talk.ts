/** The loop of `skein chat`: a message is a slash command or a question; the result is shown. */
import { SkeinError } from '../../errors.ts'
import { packageVersion } from '../../files/version.ts'
import { modelNames } from '../remote.ts'
import { coloured, hasColours, type Paint, plain } from '../terminal/output.ts'
import { Conversation } from './conversation.ts'
import { TerminalMarkdown } from './markdown.ts'
import { Prompt } from './prompt.ts'
import { runSlashCommand, type Talk } from './slash.ts'
import { type ChatMessage, type ChatRequest, streamChat, type ToolCall } from './stream.ts'

/** Errors that every further message would repeat, so the chat ends. */
const HOPELESS: ReadonlySet<string> = new Set(['model_not_loaded', 'unauthorized', 'not_found'])

interface TalkOptions extends Omit<ChatRequest, 'messages' | 'tools' | 'isThinking' | 'signal'> {
  readonly system: string
  readonly isThinking: boolean
}

/** How an answer went, for the line below it. */
interface Outcome {
  readonly calls: readonly ToolCall[]
  readonly tokens: number
  readonly firstMs: number
  readonly restMs: number
}

export class TerminalTalk implements Talk {
  readonly #options: TalkOptions
  readonly #isTerminal = process.stdin.isTTY === true
  readonly #paint: Paint = hasColours(process.stdout) ? coloured : plain
  readonly #prompt: Prompt
  readonly conversation: Conversation
  isThinking: boolean
  /** Undefined: the server's only model. */
  model: string | undefined
  tools: readonly unknown[] = []
  #answering: AbortController | null = null
  #isOver = false
  /** There is only one question: if it fails, the command fails. */
  #isSingle = false

  constructor(options: TalkOptions) {
    this.#options = options
    this.conversation = new Conversation(options.system)
    this.isThinking = options.isThinking
    this.model = options.model
    this.#prompt = new Prompt({
      input: process.stdin,
      output: process.stdout,
      isTerminal: this.#isTerminal,
      onInterrupt: () => {
        this.#answering?.abort()
        return this.#answering !== null
      },
    })
  }

  /** Answers `question` and ends, or starts a conversation if there is none. */
  async run(question?: string): Promise<void> {
    this.#isSingle = question !== undefined
    try {
      if (question !== undefined) return await this.ask(question)
      if (this.#isTerminal) await this.#greet()
      while (!this.#isOver) {
        const message = await this.#prompt.read(this.#paint('green', '> '))
        if (message === null) break
        if (message.startsWith('/')) await this.#command(message.trim())
        else if (message.trim() !== '') await this.ask(message)
      }
    } finally {
      this.#prompt.close()
    }
  }

  /** Prints a message that is no part of the conversation. */
  readonly say = (message: string): void => {
    process.stdout.write(`${this.#paint('dim', message)}\n`)
  }

  leave(): void {
    this.#isOver = true
  }

  models(): Promise<readonly string[]> {
    return modelNames(this.#options)
  }

  async #greet(): Promise<void> {
    const names = await this.models()
    const model = this.model ?? names[0] ?? 'no model'
    process.stdout.write(`${this.#paint('bold', `skein ${packageVersion()}`)} ${this.#paint('cyan', model)}\n`)
    this.say('/help lists the commands; """ starts a message of several lines; Ctrl-D exits')
  }

  async #command(line: string): Promise<void> {
    try {
      await runSlashCommand(this, line)
    } catch (error) {
      this.say(SkeinError.from(error).message)
    }
  }

  /** A question without an answer is removed, so that the next try starts from the same history. */
  async ask(content: string): Promise<void> {
    const { conversation } = this
    const before = conversation.messages
    conversation.messages = [...before, { role: 'user', content }]
    let calls = await this.#answer()
    while (calls.length > 0) {
      const results = await this.#resultsOf(calls)
      if (results === null) break
      conversation.messages = [...conversation.messages, ...results]
      calls = await this.#answer()
    }
    const last = conversation.messages.at(-1)
    if (last?.role !== 'assistant' || last.tool_calls !== undefined) conversation.messages = before
  }

  /** Shows an answer and adds it to the conversation. Returns the calls that the model makes. */
  async #answer(): Promise<readonly ToolCall[]> {
    const { conversation } = this
    const answering = new AbortController()
    this.#answering = answering
    const markdown = this.#paint === plain ? null : new TerminalMarkdown(this.#paint)
    let text = ''
    let outcome: Outcome | null = null
    try {
      outcome = await this.#stream(answering.signal, (piece) => {
        text += piece
        process.stdout.write(markdown === null ? piece : markdown.write(piece))
      })
    } catch (error) {
      process.stdout.write(markdown?.end() ?? '')
      this.#report(error, answering.signal)
    }
    process.stdout.write(`${markdown?.end() ?? ''}\n`)
    this.#answering = null
    const calls = outcome?.calls ?? []
    if (outcome !== null) this.#showFigures(outcome)
    const called = calls.length > 0 ? { tool_calls: calls } : {}
    if (text !== '' || calls.length > 0) {
      const answer: ChatMessage = { role: 'assistant', content: text, ...called }
      conversation.messages = [...conversation.messages, answer]
    }
    return calls
  }

  async #stream(signal: AbortSignal, show: (text: string) => void): Promise<Outcome> {
    const started = performance.now()
    let first = 0
    let isThought = false
    const { prompt: messages } = this.conversation
    const { model, tools, isThinking } = this
    const request = { ...this.#options, model, tools, isThinking, messages, signal }
    for await (const piece of streamChat(request)) {
      if (first === 0) first = performance.now()
      if (piece.type === 'end') {
        const { calls, tokens } = piece
        return { calls, tokens, firstMs: first - started, restMs: performance.now() - first }
      }
      if (piece.type === 'thought') process.stdout.write(this.#paint('dim', piece.text))
      else if (isThought) process.stdout.write('\n\n')
      isThought = piece.type === 'thought'
      if (piece.type === 'text') show(piece.text)
    }
    throw new SkeinError('internal', 'the stream ended too early')
  }

  #showFigures({ calls, tokens, firstMs, restMs }: Outcome): void {
    for (const { function: called } of calls) this.say(`calls ${called.name} with ${called.arguments}`)
    if (!this.#isTerminal || tokens === 0) return
    // The time starts at the first token, which is therefore not counted.
    const speed = tokens > 1 && restMs > 0 ? `, ${((1000 * (tokens - 1)) / restMs) | 0} tokens/s` : ''
    this.say(`${tokens} tokens${speed}, the first after ${Math.round(firstMs)} ms`)
  }

  /** The user plays the tools. Null: the user left. */
  async #resultsOf(calls: readonly ToolCall[]): Promise<readonly ChatMessage[] | null> {
    const results: ChatMessage[] = []
    for (const { id, function: called } of calls) {
      const content = await this.#prompt.read(this.#paint('yellow', `result of ${called.name}> `))
      if (content === null) return null
      results.push({ role: 'tool', content, tool_call_id: id })
    }
    return results
  }

  /** An aborted answer keeps its text. Permanent errors end the command; others are shown and the chat goes on. */
  #report(error: unknown, { aborted }: AbortSignal): void {
    if (aborted) return
    const failure = SkeinError.from(error)
    if (this.#isSingle || HOPELESS.has(failure.code)) throw failure
    process.stdout.write(this.#paint('red', `[${failure.message}]`))
  }
}
