/** A conversation in the API's format, with its named branches and its file. It knows neither terminal nor server. */

import { readFileSync, writeFileSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import { parsedJson } from '../../files/bytes.ts'
import type { ChatMessage } from './stream.ts'

const FIRST_BRANCH = 'main'

export class Conversation {
  /** Empty: no system prompt. */
  system: string
  messages: readonly ChatMessage[] = []
  #branch = FIRST_BRANCH
  /** The other branches and their messages. */
  readonly #others = new Map<string, readonly ChatMessage[]>()

  constructor(system: string) {
    this.system = system
  }

  get branch(): string {
    return this.#branch
  }

  /** Names of the branches and their numbers of questions, the current one first. */
  get branches(): readonly (readonly [name: string, turns: number])[] {
    const all = [[this.#branch, this.messages] as const, ...this.#others]
    return all.map(([name, messages]) => [name, messages.filter(({ role }) => role === 'user').length])
  }

  /** All messages that the model gets. */
  get prompt(): readonly ChatMessage[] {
    const system = this.system === '' ? [] : [{ role: 'system', content: this.system } as const]
    return [...system, ...this.messages]
  }

  /** Forgets everything but the system prompt. */
  reset(): void {
    this.messages = []
    this.#branch = FIRST_BRANCH
    this.#others.clear()
  }

  /** Removes the last question and everything after it, and returns the question; null if there is none. */
  undo(): string | null {
    const at = this.messages.findLastIndex(({ role }) => role === 'user')
    const question = this.messages[at]
    if (question === undefined) return null
    this.messages = this.messages.slice(0, at)
    return question.content
  }

  /** Continues under a new name; the old branch keeps all messages so far. Null: the name is taken. */
  fork(name = this.#freeName()): string | null {
    if (name === this.#branch || this.#others.has(name)) return null
    this.#others.set(this.#branch, this.messages)
    this.#branch = name
    return name
  }

  go(name: string): boolean {
    const messages = this.#others.get(name)
    if (messages === undefined) return name === this.#branch
    this.#others.set(this.#branch, this.messages)
    this.#others.delete(name)
    this.#branch = name
    this.messages = messages
    return true
  }

  /** Writes Markdown if the name ends in .md, else JSON that `load` and the API accept. */
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

/** Reads a file of `save`, or any body of a chat completion. */
function readSaved(path: string): Saved {
  // Other shapes are refused below.
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
  const value = parsedJson(readFileSync(path, 'utf8'))
  if (value === undefined) throw new SkeinError('invalid_request', `${path} is no JSON`)
  return value
}
