/**
 * A session's text, given back: nothing but tokens is kept of a conversation, and this reads them as turns, and turns as the
 * messages of the chat template where they are that. The template's heads cannot be forged by content (template.ts), so
 * they part a text as they put it together.
 */
import type { SessionInfo, TurnInfo } from '../../engine/messages.ts'
import { MARKDOWN_LAYOUT, readMarkdownResult } from '../chat/markdown-tools.ts'
import { ThoughtSplitter } from '../chat/thought-splitter.ts'
import type { TextCodec } from '../models.ts'
import { CHAT_LAYOUT, type Layout, type Role } from '../template.ts'

export interface TranscriptMessage {
  readonly role: Role
  readonly content: string
  readonly reasoning_content?: string
}

/** A turn that is kept, and the tokens that it added. */
interface TurnSpan {
  readonly turn: number
  readonly parent: number
  readonly start: number
  readonly end: number
}

/**
 * The turns on the way to `turn`, first to last. The first one reaches back to the beginning: turns before it were pruned, or
 * were read at once.
 */
export function spansTo({ turns }: SessionInfo, turn: number): TurnSpan[] {
  const byNumber = new Map(turns.map((one) => [one.turn, one]))
  const path: TurnInfo[] = []
  for (let at = byNumber.get(turn); at !== undefined; at = byNumber.get(at.parent)) path.unshift(at)
  return path.map(({ turn: number, parent, numTokens }, i) => ({
    turn: number,
    parent,
    start: path[i - 1]?.numTokens ?? 0,
    end: numTokens,
  }))
}

/** The last whole turns that together have at most `limit` tokens, and the end of the last one whatever it has. */
export function lastSpans(spans: readonly TurnSpan[], limit: number): TurnSpan[] {
  const last = spans.at(-1)
  if (last === undefined) return []
  const fitting = spans.filter(({ start }) => last.end - start <= limit)
  return fitting.length > 0 ? fitting : [{ ...last, start: last.end - limit }]
}

interface TurnText {
  readonly text: string
  /** Null where it is not the chat template. */
  readonly messages: readonly TranscriptMessage[] | null
}

/** `isCut`: the text begins somewhere inside. */
export function readTurn(codec: TextCodec, tokens: Int32Array, isCut: boolean): TurnText {
  const text = codec.decode(tokens)
  return { text, messages: messagesOf(text, isCut) }
}

interface Form {
  readonly layout: Layout
  readonly head: RegExp
}

/** The second is that of tools, by a server's setting. */
const FORMS: readonly Form[] = [
  { layout: CHAT_LAYOUT, head: /(?:^|\n\n)(?:System|User|Assistant):(?=[ \n]|$)/g },
  { layout: MARKDOWN_LAYOUT, head: /(?:^|\n)### (?:System|User|Assistant|Tool Output)(?=\n|$)/g },
]
const ROLES: readonly Role[] = ['system', 'user', 'assistant', 'tool']

/** All of a text is in one form. */
export function messagesOf(text: string, isCut = false): TranscriptMessage[] | null {
  for (const { layout, head } of FORMS) {
    const heads = [...text.matchAll(head)]
    const [first] = heads
    if (first !== undefined && (first.index === 0 || isCut)) return messagesAt(text, heads, layout)
  }
  return null
}

function messagesAt(text: string, heads: readonly RegExpExecArray[], layout: Layout): TranscriptMessage[] {
  const messages: TranscriptMessage[] = []
  heads.forEach((head, i) => {
    const role = ROLES.find((one) => layout.heads[one] === head[0].trimStart())!
    const body = text.slice(head.index + head[0].length, heads[i + 1]?.index)
    const before = messages.at(-1)
    // Nothing begins a second answer: the model wrote that head itself.
    if (role === 'assistant' && before?.role === 'assistant') {
      messages[messages.length - 1] = { ...before, content: `${before.content}${head[0]}${body}` }
    } else messages.push(messageOf(role, body, layout))
  })
  return messages
}

function messageOf(role: Role, body: string, layout: Layout): TranscriptMessage {
  const { gap } = layout
  const answer = body.startsWith(gap) ? body.slice(gap.length) : body
  if (role === 'tool') return { role, content: readMarkdownResult(layout.unescape(answer)) }
  if (role !== 'assistant') return { role, content: layout.unescape(answer) }
  if (!answer.startsWith('<think')) return { role, content: answer }
  const splitter = new ThoughtSplitter('open')
  const parts = [splitter.push(answer.slice('<think'.length)), splitter.end()]
  const [content, thought] = [parts.map((part) => part.content), parts.map((part) => part.reasoning)]
  const reasoning = thought.join('').trim()
  return { role, content: content.join(''), ...(reasoning && { reasoning_content: reasoning }) }
}

const TITLE_CHARS = 80

/** The first words of the conversation. */
export function titleOf(text: string, messages: readonly TranscriptMessage[] | null): string {
  const asked = messages?.find(({ role }) => role === 'user')?.content ?? text
  const line = asked.replace(/\s+/g, ' ').trim()
  const chars = [...line]
  return chars.length <= TITLE_CHARS
    ? line
    : `${chars
        .slice(0, TITLE_CHARS - 1)
        .join('')
        .trimEnd()}…`
}
