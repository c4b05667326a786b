/**
 * `skein chat`: a conversation in the terminal with a running server, over the same HTTP API that everyone uses.
 * With a checkpoint instead of a server it starts one for itself on a free port.
 */
import { createInterface } from 'node:readline/promises'
import { styleText } from 'node:util'
import { SkeinError } from '../errors.ts'
import { startServer } from '../host/server.ts'
import { engineChoice } from '../settings/engine-choice.ts'
import { text, toggle } from '../settings/flags.ts'
import { MAX_TOKENS, SAMPLING_FLAGS, samplingOptions } from '../settings/sampling-flags.ts'
import { ENGINE_FLAGS, MODEL_WORDS } from '../settings/table.ts'
import type { Values } from '../settings/values.ts'
import { fetchMissing } from './models/fetch.ts'
import { NAME_FLAG, SERVER_FLAGS, serverOf } from './remote.ts'
import { type ChatMessage, type ChatRequest, streamChat } from './terminal/chat-stream.ts'
import { defineCommand } from './terminal/command.ts'

const HELP = `/reset          forget the conversation
/system TEXT    set the system text and start over (no TEXT: none)
/think          let the model think before it answers, or stop that
/exit           leave (also Ctrl-D); Ctrl-C stops an answer
`

/** What no other message would change. */
const HOPELESS: ReadonlySet<string> = new Set(['model_not_loaded', 'unauthorized', 'not_found'])

const TALK_FLAGS = {
  system: text('System text'),
  think: toggle('Let the model think first'),
  'max-tokens': MAX_TOKENS,
  ...SAMPLING_FLAGS,
}

export const chat = defineCommand({
  examples: [
    ['skein chat', 'with the server on this machine'],
    ['skein chat --url host:8000 --api-key KEY', 'with one elsewhere'],
    ['skein chat MODEL.pth', 'without a server'],
  ],
  words: MODEL_WORDS,
  flags: { ...SERVER_FLAGS, 'model-name': NAME_FLAG, ...TALK_FLAGS, ...ENGINE_FLAGS },
  async run({ args }) {
    const own = args.model ? await startServer(engineChoice(args), { port: 0 }) : null
    try {
      await new Conversation({
        ...(own ? { url: own.url, apiKey: undefined } : serverOf(args)),
        model: own ? undefined : args['model-name'],
        ...talkOptions(args),
      }).run()
    } finally {
      await own?.stop()
    }
  },
})

/** Ollama's word for it: whatever is missing is fetched first. */
export const run = defineCommand({
  examples: [['skein run rwkv7-g1-0.4b', 'fetched the first time, then it answers']],
  words: { model: { ...MODEL_WORDS.model, isRequired: true } },
  flags: { ...TALK_FLAGS, ...ENGINE_FLAGS },
  async run({ args }) {
    await fetchMissing(args.model)
    const own = await startServer(engineChoice(args), { port: 0 })
    try {
      const server = { url: own.url, apiKey: undefined, model: undefined }
      await new Conversation({ ...server, ...talkOptions(args) }).run()
    } finally {
      await own.stop()
    }
  },
})

function talkOptions(args: Values<typeof TALK_FLAGS>) {
  return {
    maxTokens: args['max-tokens'],
    sampling: samplingOptions(args),
    system: args.system ?? '',
    isThinking: args.think,
  }
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
  // https://no-color.org
  const hasColour = process.stdout.isTTY && !process.env.NO_COLOR
  return hasColour ? styleText('dim', message) : message
}
