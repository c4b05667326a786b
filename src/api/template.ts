/**
 * The RWKV chat template, in code: messages in, one prompt text out. Turns are plain text in RWKV
 * ("User: …", blank line, "Assistant: …"), so a line of content that reads like the head of a turn would be one.
 * Every such line gets a space in front (reversibly: a line that already has some gets one more); apart from that,
 * content arrives byte for byte, line ends and blank lines included.
 * This file knows nothing of tokens or of the wire.
 */
import { utf8 } from '../files/bytes.ts'

export type Role = 'system' | 'user' | 'assistant'

export interface Turn {
  readonly role: Role
  readonly content: string
}

/**
 * How the answer begins. `open`: the model thinks first. `closed`: the prompt already holds an empty thought. Both end
 * just before ">", as in training: "<think>" followed by a line break is one path of tokens, "<think" another. `done`: the
 * empty thought to its end, which one dialect promises.
 */
export type ThinkMode = 'none' | 'open' | 'closed' | 'done'

/** What begins the turns of each role. */
export type Heads = Readonly<Record<Role, string>>

const HEADS: Heads = {
  system: 'System:',
  user: 'User:',
  assistant: 'Assistant:',
}

const TAILS: Readonly<Record<ThinkMode, string>> = {
  none: 'Assistant:',
  open: 'Assistant: <think',
  closed: 'Assistant: <think>\n</think',
  done: 'Assistant: <think>\n</think>\n',
}

/** What ends an answer besides token 0: the head of a turn that is not the model's to write. */
export const CHAT_STOPS: readonly string[] = ['\n\nUser:', '\n\nSystem:']

// Heads of our template and the other names RWKV models were taught for the two sides. Line ends are all those that
// a model may read as one. The colon may be the fullwidth one of Chinese text.
const FORGED =
  /(?<=^|[\n\r\v\f\u0085\u2028\u2029])(?= *(?:system|user|assistant|human|bot)[ \t]*[:：])/giu
const ESCAPED =
  /(?<=^|[\n\r\v\f\u0085\u2028\u2029]) (?= *(?:system|user|assistant|human|bot)[ \t]*[:：])/giu
/** Behind a line end that is put before the text, so that its first line is one like the others. */
const LINE_STARTS = /[\n\r\v\f\u0085\u2028\u2029]( *)/gu

/** Puts one space before every line that reads like the head of a turn. */
export function escapeRoles(content: string): string {
  return content.replace(FORGED, ' ')
}

/** The inverse of escapeRoles. */
export function unescapeRoles(escaped: string): string {
  return escaped.replace(ESCAPED, '')
}

/** Heads of speakers with names of their own, where they have one. */
export function headsOf(names: Readonly<Partial<Record<Role, string | null | undefined>>>): Heads {
  const headOf = (role: Role) => (names[role] ? `${names[role]}:` : HEADS[role])
  return { system: headOf('system'), user: headOf('user'), assistant: headOf('assistant') }
}

export function renderChat(turns: readonly Turn[], think: ThinkMode): string {
  return renderTurns(turns, chatTail(think))
}

/** How the turn of the answer begins. */
export function chatTail(think: ThinkMode): string {
  return TAILS[think]
}

/** Where each turn ends, in bytes of the rendered text: what conversations that share their beginning have in common. */
export function turnEnds(turns: readonly Turn[], heads: Heads = HEADS): number[] {
  let at = 0
  return turns.map((turn, i) => {
    at += utf8(renderTurn(turn, heads)).length + (i === 0 ? 0 : 2)
    return at
  })
}

/** The turns, and the beginning of the next one if given. */
export function renderTurns(turns: readonly Turn[], tail?: string, heads: Heads = HEADS): string {
  const parts = turns.map((turn) => renderTurn(turn, heads))
  if (tail !== undefined) parts.push(tail)
  return parts.join('\n\n')
}

function renderTurn({ role, content }: Turn, heads: Heads): string {
  const plain = escapeRoles(role === 'assistant' ? withoutThought(content) : content)
  const text = heads === HEADS ? plain : escapeHeads(plain, heads)
  return text === '' ? heads[role] : `${heads[role]} ${text}`
}

/** The same for heads with names of their own. */
function escapeHeads(content: string, heads: Heads): string {
  const own = Object.values(heads).filter((head) => !Object.values(HEADS).includes(head))
  if (own.length === 0) return content
  const whole = `\n${content}`
  const beginsTurn = (at: number) =>
    own.some((head) => folded(whole.slice(at, at + head.length)) === folded(head))
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
