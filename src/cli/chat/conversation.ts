/** A conversation as the API takes it, its branches under names, and its file. Knows no terminal and no server. */
import { readFileSync, writeFileSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import type { ChatMessage } from './stream.ts'

const FIRST_BRANCH = 'main'

export class Conversation {
  /** '': none. */
  system: string
  messages: readonly ChatMessage[] = []
  #branch = FIRST_BRANCH
  /** Those that were left, with their messages. */
  readonly #others = new Map<string, readonly ChatMessage[]>()

  constructor(system: string) {
    this.system = system
  }

  get branch(): string {
    return this.#branch
  }

  /** Name and number of questions, this one first. */
  get branches(): readonly (readonly [name: string, turns: number])[] {
    const all = [[this.#branch, this.messages] as const, ...this.#others]
    return all.map(([name, messages]) => [name, messages.filter(({ role }) => role === 'user').length])
  }

  /** All that the model is to read. */
  get prompt(): readonly ChatMessage[] {
    const system = this.system === '' ? [] : [{ role: 'system', content: this.system } as const]
    return [...system, ...this.messages]
  }

  /** Forgets all but the system text. */
  reset(): void {
    this.messages = []
    this.#branch = FIRST_BRANCH
    this.#others.clear()
  }

  /** Takes the last question and what came of it back; null if there is none. */
  undo(): string | null {
    const at = this.messages.findLastIndex(({ role }) => role === 'user')
    const question = this.messages[at]
    if (question === undefined) return null
    this.messages = this.messages.slice(0, at)
    return question.content
  }

  /** Goes on under a new name; what was said so far stays under the old one, too. Null: the name is taken. */
  fork(name = this.#freeName()): string | null {
    if (name === this.#branch || this.#others.has(name)) return null
    this.#others.set(this.#branch, this.messages)
    this.#branch = name
    return name
  }

  /** Whether there is such a branch. */
  go(name: string): boolean {
    const messages = this.#others.get(name)
    if (messages === undefined) return name === this.#branch
    this.#others.set(this.#branch, this.messages)
    this.#others.delete(name)
    this.#branch = name
    this.messages = messages
    return true
  }

  /** As Markdown for readers, where the name ends so; else as `load` and the API take it. */
  save(path: string): void {
    const { system, messages } = this
    const text = path.endsWith('.md')
      ? this.prompt.map(({ role, content }) => `## ${role}\n\n${content}\n`).join('\n')
      : `${JSON.stringify({ system, messages }, null, 2)}\n`
    writeFileSync(path, text)
  }

  load(path: string): void {
    const { system = '', messages } = readSaved(path)
    this.reset()
    const first = messages[0]?.role === 'system' ? messages[0].content : system
    this.system = first
    this.messages = messages.filter(({ role }) => role !== 'system')
  }

  #freeName(): string {
    for (let n = 2; ; n++) {
      const name = `${FIRST_BRANCH}-${n}`
      if (name !== this.#branch && !this.#others.has(name)) return name
    }
  }
}

interface Saved {
  readonly system?: string
  readonly messages: readonly ChatMessage[]
}

const ROLES: readonly unknown[] = ['system', 'user', 'assistant', 'tool']

/** The file of `save`, or any body of a chat completion. */
function readSaved(path: string): Saved {
  // What is no such object is refused below.
  const saved = readJson(path) as Partial<Saved> | null
  const messages: unknown = saved?.messages
  if (!Array.isArray(messages) || !messages.every(isMessage))
    throw new SkeinError(
      'invalid_request',
      `${path} has no list "messages" of {"role", "content"}; /save writes one that has`,
    )
  return { messages, ...(typeof saved?.system === 'string' ? { system: saved.system } : {}) }
}

function isMessage(value: unknown): value is ChatMessage {
  if (typeof value !== 'object' || value === null) return false
  return 'role' in value && ROLES.includes(value.role) && 'content' in value && typeof value.content === 'string'
}

export function readJson(path: string): unknown {
  const text = readFileSync(path, 'utf8')
  try {
    return JSON.parse(text)
  } catch {
    throw new SkeinError('invalid_request', `${path} is no JSON`)
  }
}
