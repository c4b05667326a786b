/**
 * Reads messages from a terminal or a pipe. A message is a line; `"""` starts and ends a message of several lines, and
 * Alt+Enter or a paste continues on the next line. Ctrl-C stops a running answer, else clears the input, else exits.
 */
import { createInterface, emitKeypressEvents, type Interface, type Key } from 'node:readline'

const QUOTES = '"""'
/** Makes the terminal mark pastes. Without the marks, readline takes their lines for typed ones. */
const PASTES_ON = '\x1b[?2004h'
const PASTES_OFF = '\x1b[?2004l'

interface PromptOptions {
  readonly input: NodeJS.ReadableStream
  readonly output: NodeJS.WritableStream
  readonly isTerminal: boolean
  /** Whether there was something to stop. */
  onInterrupt(): boolean
}

export class Prompt {
  readonly #lines: Interface
  readonly #options: PromptOptions
  /** Messages that have not been read yet. */
  readonly #ready: string[] = []
  #waiting: ((message: string | null) => void) | null = null
  #isClosed = false
  /** Lines of an unfinished message. */
  #begun: string[] = []
  #isQuoted = false
  #goesOn = false
  #isPasting = false
  #prompt = ''

  constructor(options: PromptOptions) {
    this.#options = options
    const { input, output, isTerminal } = options
    this.#lines = createInterface({ input, output, terminal: isTerminal })
    this.#lines.on('line', (line) => this.#take(line))
    this.#lines.on('SIGINT', () => this.#interrupt())
    this.#lines.on('close', () => this.#end())
    if (!isTerminal) return
    emitKeypressEvents(input, this.#lines)
    input.on('keypress', (_text, key: Key) => this.#press(key))
    output.write(PASTES_ON)
  }

  /** Null at the end of the input. */
  read(prompt: string): Promise<string | null> {
    const message = this.#ready.shift()
    if (message !== undefined || this.#isClosed) return Promise.resolve(message ?? null)
    this.#prompt = prompt
    this.#show()
    return new Promise((resolve) => {
      this.#waiting = resolve
    })
  }

  close(): void {
    this.#lines.close()
  }

  #press({ name, meta }: Key): void {
    if (name === 'paste-start') this.#isPasting = true
    if (name === 'paste-end') this.#isPasting = false
    if (name !== 'return' || meta !== true) return
    this.#goesOn = true
    this.#lines.write(null, { name: 'return' })
  }

  #take(line: string): void {
    if (this.#begun.length === 0 && !this.#isQuoted && line.trimStart().startsWith(QUOTES)) {
      this.#isQuoted = true
      line = line.trimStart().slice(QUOTES.length)
    }
    const isLast = this.#isQuoted && line.trimEnd().endsWith(QUOTES)
    this.#begun.push(isLast ? line.trimEnd().slice(0, -QUOTES.length) : line)
    const goesOn = this.#goesOn || this.#isPasting || (this.#isQuoted && !isLast)
    this.#goesOn = false
    if (goesOn) this.#show()
    else this.#finish()
  }

  #finish(): void {
    const message = this.#begun.join('\n')
    this.#clear()
    const waiting = this.#waiting
    this.#waiting = null
    if (waiting === null) this.#ready.push(message)
    else waiting(message)
  }

  #clear(): void {
    this.#begun = []
    this.#isQuoted = false
  }

  #interrupt(): void {
    if (this.#options.onInterrupt()) return
    if (this.#lines.line === '' && this.#begun.length === 0) {
      this.close()
      return
    }
    this.#clear()
    // Readline has no call to clear the line: move to its end and delete everything before.
    for (const name of ['e', 'u']) this.#lines.write(null, { ctrl: true, name })
    this.#options.output.write('\n')
    this.#show()
  }

  #show(): void {
    if (!this.#options.isTerminal) return
    this.#lines.setPrompt(this.#begun.length > 0 || this.#isQuoted ? '… ' : this.#prompt)
    this.#lines.prompt()
  }

  #end(): void {
    this.#isClosed = true
    if (this.#options.isTerminal) this.#options.output.write(PASTES_OFF)
    if (this.#begun.length > 0) this.#finish()
    this.#waiting?.(null)
    this.#waiting = null
  }
}
