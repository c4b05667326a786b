/**
 * `skein chat`: a conversation in the terminal with a running server, over the same HTTP API that everyone uses.
 * With a checkpoint instead of a server it starts one for itself on a free port.
 */
import { createInterface } from 'node:readline/promises'
import { styleText } from 'node:util'
import { defineCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { engineArgs, engineChoice, integer, text } from './args.ts'
import { type ChatMessage, type ChatRequest, streamChat } from './chat-stream.ts'
import { samplingArgs, samplingOptions } from './sampling-args.ts'
import { startServer } from './server.ts'

const HELP = `/reset          forget the conversation
/system TEXT    set the system text and start over (no TEXT: none)
/think          let the model think before it answers, or stop that
/exit           leave (also Ctrl-D); Ctrl-C stops an answer
`

/** What no other message would change. */
const HOPELESS: ReadonlySet<string> = new Set(['model_not_loaded', 'unauthorized', 'not_found'])

export const chat = defineCommand({
  meta: {
    name: 'chat',
    description: 'Talk with a model in the terminal: a running server, or FILE without one',
  },
  args: {
    ...engineArgs,
    ...samplingArgs,
    url: {
      type: 'string',
      default: 'http://127.0.0.1:8000',
      description: 'Server to talk to when no FILE is given',
    },
    'model-name': {
      type: 'string',
      description: 'Which of its models (default: the only one)',
      valueHint: 'NAME',
    },
    'api-key': { type: 'string', description: 'Key of the server (default: $SKEIN_API_KEY)' },
    system: { type: 'string', description: 'System text' },
    think: { type: 'boolean', description: 'Let the model think first' },
  },
  async run({ args }) {
    const own = text(args, 'model') ? await startServer(engineChoice(args), { port: 0 }) : null
    try {
      await new Conversation({
        url: own?.url ?? serverUrl(text(args, 'url')!),
        model: own ? undefined : text(args, 'model-name'),
        apiKey: text(args, 'api-key') ?? process.env.SKEIN_API_KEY,
        maxTokens: integer(args, 'max-tokens', 1, 1_000_000),
        ...samplingOptions(args),
        system: text(args, 'system') ?? '',
        isThinking: args.think === true,
      }).run()
    } finally {
      await own?.stop()
    }
  },
})

/** As other clients are given it, "host:8000" and "http://host:8000/v1" mean the same server. */
export function serverUrl(given: string): string {
  const url = /^https?:\/\//i.test(given) ? given : `http://${given}`
  return url.replace(/\/+$/, '').replace(/\/v1$/, '')
}

interface ConversationOptions extends Omit<ChatRequest, 'messages' | 'isThinking' | 'signal'> {
  readonly system: string
  readonly isThinking: boolean
}

class Conversation {
  readonly #options: ConversationOptions
  #system: string
  #isThinking: boolean
  #messages: ChatMessage[] = []
  #answering: AbortController | null = null

  constructor(options: ConversationOptions) {
    this.#options = options
    this.#system = options.system
    this.#isThinking = options.isThinking
  }

  async run(): Promise<void> {
    const isTerminal = process.stdin.isTTY === true
    const lines = createInterface({
      input: process.stdin,
      output: process.stdout,
      terminal: isTerminal,
    })
    lines.on('SIGINT', () => (this.#answering ? this.#answering.abort() : lines.close()))
    if (isTerminal) process.stdout.write(`${dim('/help lists the commands')}\n`)
    lines.setPrompt(isTerminal ? '> ' : '')
    lines.prompt()
    for await (const line of lines) {
      if (line.trim() === '/exit' || line.trim() === '/quit') break
      if (line.startsWith('/')) this.#command(line.trim())
      else if (line.trim() !== '') await this.#turn(line)
      lines.prompt()
    }
    lines.close()
  }

  #command(line: string): void {
    const [name, ...rest] = line.split(' ')
    const say = (message: string) => process.stdout.write(`${dim(message)}\n`)
    switch (name) {
      case '/reset':
        this.#messages = []
        return void say('forgotten')
      case '/system':
        this.#system = rest.join(' ')
        this.#messages = []
        return void say(this.#system === '' ? 'no system text' : `system text: ${this.#system}`)
      case '/think':
        this.#isThinking = !this.#isThinking
        return void say(this.#isThinking ? 'thinking first' : 'answering at once')
      default:
        process.stdout.write(HELP)
    }
  }

  async #turn(content: string): Promise<void> {
    const system: ChatMessage[] = this.#system ? [{ role: 'system', content: this.#system }] : []
    const messages: ChatMessage[] = [...this.#messages, { role: 'user', content }]
    this.#answering = new AbortController()
    let answer = ''
    try {
      const request = {
        ...this.#options,
        messages: [...system, ...messages],
        isThinking: this.#isThinking,
        signal: this.#answering.signal,
      }
      for await (const piece of streamChat(request)) {
        process.stdout.write(piece.isThought ? dim(piece.text) : piece.text)
        if (!piece.isThought) answer += piece.text
      }
    } catch (error) {
      this.#report(error)
    }
    process.stdout.write('\n')
    this.#answering = null
    // A turn without an answer is forgotten, so that the next try starts from the same history.
    if (answer !== '') this.#messages = [...messages, { role: 'assistant', content: answer }]
  }

  /** An aborted answer keeps what was said; a server or model that cannot be had ends the command; the rest is shown and one may go on. */
  #report(error: unknown): void {
    if (this.#answering?.signal.aborted) return
    const failure = SkeinError.from(error)
    if (HOPELESS.has(failure.code)) throw failure
    process.stdout.write(dim(`[${failure.message}]`))
  }
}

function dim(message: string): string {
  return process.stdout.isTTY ? styleText('dim', message) : message
}
