/**
 * The RWKV chat template, in code: messages in, one prompt text out. Turns are plain text in RWKV
 * ("User: …", blank line, "Assistant: …"), so a line of content that reads like the head of a turn would be one.
 * Every such line gets a space in front (reversibly: a line that already has some gets one more); apart from that,
 * content arrives byte for byte, line ends and blank lines included.
 * This file knows nothing of tokens or of the wire.
 */
import { utf8 } from '../files/bytes.ts'

/** `tool`: a result, in the chat template a text of the user. */
export type Role = 'system' | 'user' | 'assistant' | 'tool'

export interface Turn {
  readonly role: Role
  readonly content: string
}

export interface Layout {
  /** The beginning of a turn, by role. */
  readonly heads: Readonly<Record<Role, string>>
  /** Between a head and its text. */
  readonly gap: string
  /** Between two turns. */
  readonly between: string
  /** Content with a space before every line that reads like a head, and the inverse. */
  escape(content: string): string
  unescape(escaped: string): string
}

/**
 * How the answer begins. `open`: the model thinks first. `closed`: the prompt already holds an empty thought. Both end
 * just before ">", as in training: "<think>" followed by a line break is one path of tokens, "<think" another. `done`: the
 * empty thought to its end, which one dialect promises.
 */
export type ThinkMode = 'none' | 'open' | 'closed' | 'done'

type Heads = Layout['heads']

const HEADS: Heads = { system: 'System:', user: 'User:', assistant: 'Assistant:', tool: 'User:' }

const TAILS: Readonly<Record<ThinkMode, string>> = {
  none: 'Assistant:',
  open: 'Assistant: <think',
  closed: 'Assistant: <think>\n</think',
  done: 'Assistant: <think>\n</think>\n',
}

/** Texts that end an answer besides token 0: heads of turns that the model must not write. */
export const CHAT_STOPS: readonly string[] = ['\n\nUser:', '\n\nSystem:']

/**
 * Lines that begin with a head of our template, or with another name that RWKV models were taught for the two sides; the colon may
 * be that of Chinese text, and line ends are all those that a model may read as one. Second: with a space before them.
 */
const FORGED = /(?<=^|[\n\r\v\f\u0085\u2028\u2029])(?= *(?:system|user|assistant|human|bot)[ \t]*[:：])/giu
const ESCAPED = /(?<=^|[\n\r\v\f\u0085\u2028\u2029]) (?= *(?:system|user|assistant|human|bot)[ \t]*[:：])/giu
/** Behind a line end that is put before the text, so that its first line is one like the others. */
const LINE_STARTS = /[\n\r\v\f\u0085\u2028\u2029]( *)/gu

/** Puts one space before every line that begins like a head, and takes it away. */
export function escapeOf(forged: RegExp, escaped: RegExp): Pick<Layout, 'escape' | 'unescape'> {
  return { escape: (content) => content.replace(forged, ' '), unescape: (content) => content.replace(escaped, '') }
}

export const CHAT_LAYOUT: Layout = { heads: HEADS, gap: ' ', between: '\n\n', ...escapeOf(FORGED, ESCAPED) }

/** A layout with other names for the speakers, where they have some. */
export function layoutOf(names: Readonly<Partial<Record<Exclude<Role, 'tool'>, string | null | undefined>>>): Layout {
  const headOf = (role: keyof typeof names) => (names[role] ? `${names[role]}:` : HEADS[role])
  const heads = { system: headOf('system'), user: headOf('user'), assistant: headOf('assistant'), tool: headOf('user') }
  return { ...CHAT_LAYOUT, heads, escape: (content) => escapeHeads(CHAT_LAYOUT.escape(content), heads) }
}

export function renderChat(turns: readonly Turn[], think: ThinkMode): string {
  return renderTurns(turns, chatTail(think))
}

export function chatTail(think: ThinkMode): string {
  return TAILS[think]
}

/** Where each turn ends, in bytes of the rendered text: what conversations that share their beginning have in common. */
export function turnEnds(turns: readonly Turn[], layout: Layout = CHAT_LAYOUT): number[] {
  let at = 0
  return turns.map((turn, i) => {
    at += utf8(renderTurn(turn, layout)).length + (i === 0 ? 0 : layout.between.length)
    return at
  })
}

/** The turns, and the beginning of the next one if given. */
export function renderTurns(turns: readonly Turn[], tail?: string, layout: Layout = CHAT_LAYOUT): string {
  const parts = turns.map((turn) => renderTurn(turn, layout))
  if (tail !== undefined) parts.push(tail)
  return parts.join(layout.between)
}

function renderTurn({ role, content }: Turn, layout: Layout): string {
  const head = layout.heads[role]
  const text = layout.escape(role === 'assistant' ? withoutThought(content) : content)
  return text === '' ? head : `${head}${layout.gap}${text}`
}

/** The same for heads with names of their own. */
function escapeHeads(content: string, heads: Heads): string {
  const own = Object.values(heads).filter((head) => !Object.values(HEADS).includes(head))
  if (own.length === 0) return content
  const whole = `\n${content}`
  const beginsTurn = (at: number) => own.some((head) => folded(whole.slice(at, at + head.length)) === folded(head))
  return whole
    .replace(LINE_STARTS, (line, spaces: string, at: number) =>
      beginsTurn(at + line.length) ? `${line[0]} ${spaces}` : line,
    )
    .slice(1)
}

/** Capitals are no difference, as in a pattern that ignores case. */
function folded(text: string): string {
  return text.toUpperCase().toLowerCase()
}

/**
 * An earlier answer without its thought: models are trained on histories that hold answers only. A thought runs to the
 * first "</think>"; its opening tag may be missing (it was part of the prompt). Text that merely talks
 * about the tags, with an opening one further in, is left alone.
 */
function withoutThought(content: string): string {
  const end = content.indexOf('</think>')
  if (end < 0) return content
  const open = content.indexOf('<think>')
  const opensLater = open >= 0 && open < end && content.slice(0, open).trim() !== ''
  if (opensLater) return content
  return content.slice(end + '</think>'.length).replace(/^\s+/, '')
}
