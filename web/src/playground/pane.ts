/**
 * One conversation of the playground: a tree of exchanges (question and answer), each a turn of a session on the
 * server. Sends, stops, answers again, branches and forks; rendering is elsewhere.
 *
 * If the server has the state of a turn, only the new message is sent. If not (stopped answers, another model, a pruned
 * turn), the whole path is sent again, with the same result.
 */
import { type Signal, signal } from '@preact/signals'
import { touch } from '../conversations/list.ts'
import type { ReadSession } from '../conversations/read-session.ts'
import { readTranscript } from '../conversations/transcript.ts'
import { call } from '../lib/api.ts'
import { type Message, streamChat } from '../lib/chat.ts'
import { ApiError, messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { shareSession } from '../lib/sessions.ts'
import { pathTo, type TreeNode } from '../lib/tree.ts'
import { DEFAULTS, type Settings, splitThought, type ToolCall } from '../lib/wire.ts'
import { type Answer, NO_ANSWER, receive } from './answer.ts'
import { type Choice, rootOf, targetOf } from './targets.ts'

export interface Exchange extends TreeNode {
  /** Null if the text is unknown or not an exchange: only the server's state has it. */
  readonly question: string | null
  /** Results of the tools that the previous answer called; null for a question. */
  readonly results: readonly string[] | null
  readonly answer: Signal<Answer>
}

const TEXTS_UNKNOWN =
  'Earlier turns were made elsewhere and their texts are not known here: only {model} can continue, and the system prompt cannot change.'

/** The server deletes a conversation after a quarter of a year without use. */
const SESSION_SECONDS = 90 * 86_400

/** The server may still be ending the answer when it is asked. */
const STOPPED_TRIES = 10
const STOPPED_PAUSE_MS = 150

export class Pane {
  readonly choice = signal<Choice | null>(null)
  readonly system = signal('')
  readonly settings = signal<Settings>(DEFAULTS)
  readonly exchanges = signal<readonly Exchange[]>([])
  /** The exchange that the next message follows; 0: the beginning. */
  readonly head = signal(0)
  readonly notice = signal<string | null>(null)
  readonly isBusy = signal(false)
  readonly #kept = signal<Session | null>(null)
  #abort: AbortController | null = null

  get #session(): Session | null {
    return this.#kept.value
  }

  set #session(session: Session | null) {
    this.#kept.value = session
  }

  /** Null until the server has a turn under this pane's session id. */
  get sessionId(): string | null {
    return this.#session === null || this.#session.isOthers ? null : this.#session.id
  }

  /** The session that it was copied from when its first message was sent. */
  get copiedFrom(): string | null {
    return this.#session?.copiedFrom ?? null
  }

  /** The model that the session belongs to, by its own name. */
  get model(): string | null {
    return this.#session === null ? null : rootOf(this.#session.choice.model)
  }

  /** The server has a turn of this conversation. */
  get isKept(): boolean {
    return this.exchanges.value.some(({ answer }) => answer.value.turn !== null)
  }

  /** The first question. */
  get firstWords(): string {
    const asked = this.exchanges.value.find(({ question }) => question !== null)?.question ?? ''
    return asked.replace(/\s+/g, ' ').trim().slice(0, 80)
  }

  path(): Exchange[] {
    return pathTo(this.exchanges.value, this.head.value)
  }

  send(question: string): Promise<void> {
    return this.#ask(question, this.head.value)
  }

  /** Sends the results of the called tools, in order. */
  sendResults(results: readonly string[]): Promise<void> {
    return this.#ask(results.join('\n'), this.head.value, results)
  }

  callsBefore({ parent }: Exchange): readonly ToolCall[] {
    return this.exchanges.value.find(({ id }) => id === parent)?.answer.value.toolCalls ?? []
  }

  /** Asks the same question again: a new branch beside the old answer. */
  again(exchange: Exchange): Promise<void> {
    return this.#ask(exchange.question ?? '', exchange.parent, exchange.results)
  }

  /** Replaces the question: a new branch, too. */
  edit(exchange: Exchange, question: string): Promise<void> {
    return this.#ask(question, exchange.parent)
  }

  stop(): void {
    this.#abort?.abort()
  }

  /** A token with which others can copy a turn. Null if there is none; the notice says why. */
  async share(turn: number): Promise<string | null> {
    const { model, sessionId } = this
    if (model === null || sessionId === null) return null
    try {
      return await shareSession(model, sessionId, turn)
    } catch (thrown) {
      this.notice.value = messageOf(thrown)
      return null
    }
  }

  /** Makes the next message follow this exchange. Moves the server's head, too, for other users of the session. */
  async rewind(exchange: Exchange): Promise<void> {
    this.head.value = exchange.id
    const { turn } = exchange.answer.value
    if (this.#session === null || this.#session.isOthers || turn === null) return
    await this.#call(this.#session, 'rewind', { turn })
  }

  /** A new conversation that starts as this one up to the exchange and shares its states. */
  async fork(exchange: Exchange): Promise<Pane> {
    const copy = new Pane()
    copy.choice.value = this.choice.value
    copy.system.value = this.system.value
    copy.settings.value = this.settings.value
    copy.exchanges.value = pathTo(this.exchanges.value, exchange.id).map((one) => ({
      ...one,
      answer: signal(one.answer.value),
    }))
    copy.head.value = exchange.id
    const { turn } = exchange.answer.value
    if (this.#session === null || turn === null) return copy
    const session = { ...this.#session, id: newSessionId(), isOthers: false }
    if (await this.#call(this.#session, 'fork', { turn, new_id: session.id })) {
      copy.#session = session
      copy.#tell()
    }
    return copy
  }

  reset(): void {
    this.stop()
    this.#session = null
    this.exchanges.value = []
    this.head.value = 0
    this.notice.value = null
  }

  /** Continues a session of the server. With `isOthers` it continues a copy, which the next message makes. */
  adopt(choice: Choice, id: string, read: ReadSession, isOthers = false): void {
    this.reset()
    this.choice.value = choice
    // The session has its own beginning.
    this.system.value = read.system
    this.#session = { id, choice, system: read.system.trim(), isOthers }
    if (read.tools.length > 0) {
      this.settings.value = { ...this.settings.value, tools: JSON.stringify(read.tools, null, 2) }
    }
    this.exchanges.value = read.said.map(({ id: exchange, parent, question, results, ...words }) => ({
      id: exchange,
      parent,
      question,
      results,
      answer: signal({ ...NO_ANSWER, state: 'done' as const, ...words }),
    }))
    this.head.value = read.head
  }

  async #ask(question: string, parent: number, results: readonly string[] | null = null): Promise<void> {
    const { value: choice } = this.choice
    if (choice === null || this.isBusy.value) return
    this.notice.value = null
    const id = Math.max(0, ...this.exchanges.value.map((one) => one.id)) + 1
    const sent = performance.now()
    const answer = signal<Answer>({ ...NO_ANSWER, times: { sent, first: null, last: null } })
    this.exchanges.value = [...this.exchanges.value, { id, parent, question, results, answer }]
    this.head.value = id
    this.isBusy.value = true
    this.#abort = new AbortController()
    try {
      await this.#checkSession(choice, parent)
      await this.#answer(choice, id, answer, this.#abort.signal)
      answer.value = { ...answer.value, state: 'done' }
    } catch (thrown) {
      const isStopped = this.#abort.signal.aborted
      const error = isStopped ? null : messageOf(thrown)
      answer.value = { ...answer.value, state: isStopped ? 'stopped' : 'failed', error }
      if (isStopped && answer.value.text !== '') await this.#findStopped(answer)
    } finally {
      this.isBusy.value = false
      this.#tell()
    }
  }

  /**
   * A stopped answer becomes a turn (`on_cancel`), but its number was not sent. It may have more text than arrived here.
   */
  async #findStopped(answer: Signal<Answer>): Promise<void> {
    const { id, choice } = this.#session!
    const known = new Set(this.exchanges.value.map((one) => one.answer.value.turn))
    for (let tries = 0; tries < STOPPED_TRIES; tries++) {
      try {
        const read = await readTranscript(targetOf(choice), id, {})
        const last = read.turns.at(-1)
        if (last !== undefined && !known.has(last.turn)) {
          const said = last.messages?.findLast(({ role }) => role === 'assistant')
          const text = said?.content ?? answer.value.text
          answer.value = { ...answer.value, text, turn: last.turn }
          return
        }
      } catch {
        // No session yet, or no such route: the next message sends the text again.
        return
      }
      await new Promise((go) => setTimeout(go, STOPPED_PAUSE_MS))
    }
  }

  /** Moves it to the top of the list of conversations. */
  #tell(): void {
    const { sessionId } = this
    if (sessionId === null || !this.isKept) return
    touch(this.model!, sessionId, this.firstWords, this.exchanges.value.length)
  }

  /** States belong to a model, and the first turn holds the system prompt. */
  async #checkSession(choice: Choice, parent: number): Promise<void> {
    const system = this.system.value.trim()
    const now = this.#session
    if (now !== null && now.choice.id === choice.id && now.system === system) {
      if (now.isOthers) await this.#copy(now, parent)
      return
    }
    if (now !== null) {
      // Keep the session, in case its model and system prompt are chosen again.
      if (!this.#knowsAllTexts(parent)) throw new Error(t(TEXTS_UNKNOWN, { model: now.choice.id }))
      for (const { answer } of this.exchanges.value) answer.value = { ...answer.value, turn: null }
    }
    this.#session = { id: newSessionId(), choice, system, isOthers: false }
  }

  /** The copy has only the path to `parent`, no other branches. */
  async #copy(session: Session, parent: number): Promise<void> {
    const copy = { ...session, id: newSessionId(), isOthers: false, copiedFrom: session.id }
    const path = pathTo(this.exchanges.value, parent)
    const turn = path.findLast(({ answer }) => answer.value.turn !== null)?.answer.value.turn
    const { base, model } = targetOf(session.choice)
    const address = `${base}/v1/sessions/${encodeURIComponent(session.id)}/fork`
    await call(address, { body: { model, turn: turn ?? 0, new_id: copy.id } })
    this.#session = copy
    this.exchanges.value = [...path, ...this.exchanges.value.slice(-1)]
  }

  async #answer(choice: Choice, id: number, answer: Signal<Answer>, abort: AbortSignal): Promise<void> {
    const attempt = async () => {
      const { messages, from } = this.#prompt(id)
      const use = { id: this.#session!.id, from, ttl_seconds: SESSION_SECONDS }
      const session = { ...use, on_cancel: 'keep' as const }
      const parts = streamChat(targetOf(choice), messages, this.settings.value, session, abort)
      await receive(parts, answer.value, (value) => {
        answer.value = value
      })
    }
    try {
      await attempt()
    } catch (thrown) {
      if (!isStateLost(thrown) || !this.#knowsAllTexts(id)) throw thrown
      // The server has deleted the turn, but the texts are here.
      this.#session = { ...this.#session!, id: newSessionId() }
      for (const one of this.exchanges.value) one.answer.value = { ...one.answer.value, turn: null }
      await attempt()
    }
  }

  /** Starts from the newest turn of the path that the server still has. */
  #prompt(id: number): { readonly messages: readonly Message[]; readonly from: number } {
    const path = pathTo(this.exchanges.value, id)
    const known = path.findLastIndex(({ answer }) => answer.value.turn !== null)
    const messages: Message[] = []
    const system = this.system.value.trim()
    if (known < 0 && system !== '') messages.push({ role: 'system', content: system })
    for (const { id: one, question, results, answer } of path.slice(known + 1)) {
      if (one !== id && isUnanswered(answer.value)) continue
      if (results === null) messages.push({ role: 'user', content: question ?? '' })
      else messages.push(...results.map((content) => ({ role: 'tool' as const, content })))
      if (one !== id) messages.push(answerMessage(answer.value))
    }
    return { messages, from: path[known]?.answer.value.turn ?? 0 }
  }

  #knowsAllTexts(id: number): boolean {
    return pathTo(this.exchanges.value, id).every(({ question }) => question !== null)
  }

  async #call({ id, choice }: Session, action: string, body: object): Promise<boolean> {
    const { base, model } = targetOf(choice)
    try {
      const path = `${base}/v1/sessions/${encodeURIComponent(id)}/${action}`
      await call(path, { body: { model, ...body } })
      return true
    } catch (thrown) {
      this.notice.value = t('The server kept its session as it was: {reason}', { reason: messageOf(thrown) })
      return false
    }
  }
}

interface Session {
  readonly id: string
  readonly choice: Choice
  readonly system: string
  /** This session is only read; another continues from it. */
  readonly isOthers: boolean
  readonly copiedFrom?: string
}

/** 64 random bits. Ids cannot be guessed, nor used with another key. */
export function newSessionId(): string {
  const [a, b] = crypto.getRandomValues(new Uint32Array(2))
  return `play-${a!.toString(16).padStart(8, '0')}${b!.toString(16).padStart(8, '0')}`
}

/** It failed or stopped before its first word. An empty answer in the prompt would invite more of them. */
function isUnanswered({ state, text }: Answer): boolean {
  return state !== 'done' && text === ''
}

/** An earlier answer as part of a later prompt: without its thought. */
function answerMessage({ text, toolCalls }: Answer): Message {
  const said = { role: 'assistant', content: splitThought(text).answer } as const
  if (toolCalls.length === 0) return said
  const calls = toolCalls.map(({ index, name, arguments: given }) => ({
    id: `call-${index}`,
    type: 'function',
    function: { name, arguments: given },
  }))
  return { ...said, tool_calls: calls }
}

function isStateLost(thrown: unknown): boolean {
  if (!(thrown instanceof ApiError)) return false
  return thrown.code === 'state_unavailable' || (thrown.status === 404 && thrown.code === 'not_found')
}
