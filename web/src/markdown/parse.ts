/**
 * Markdown as models write it, to the tokens of `marked`'s lexer: its renderer, which makes markup, is never used. Maths in
 * `$…$`, `$$…$$`, `\(…\)` and `\[…\]` are tokens of their own.
 */
import { Marked, type Token, type TokenizerExtension, type Tokens } from 'marked'

export interface MathToken extends Tokens.Generic {
  readonly type: 'maths'
  readonly text: string
  readonly isBlock: boolean
}

const BLOCK = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/
// Two prices in a line are no formula: the second sign has no blank before it and no digit behind it.
const INLINE =
  /^(?:\$\$([^$]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s\\$])\$(?!\d)|\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\])/

const blockMaths: TokenizerExtension = {
  name: 'maths',
  level: 'block',
  start: (text) => indexOf(text, /(?:^|\n)(?:\$\$|\\\[)/),
  tokenizer(text) {
    const match = BLOCK.exec(text)
    return match === null ? undefined : mathsOf(match, true)
  },
}

const inlineMaths: TokenizerExtension = {
  name: 'inlineMaths',
  level: 'inline',
  start: (text) => indexOf(text, /\$|\\[([]/),
  tokenizer(text) {
    const match = INLINE.exec(text)
    return match === null ? undefined : mathsOf(match, match[1] !== undefined)
  },
}

function indexOf(text: string, pattern: RegExp): number | undefined {
  const at = text.search(pattern)
  return at < 0 ? undefined : at
}

function mathsOf([raw, ...parts]: RegExpExecArray, isBlock: boolean): MathToken {
  const text = parts.find((part) => part !== undefined) ?? ''
  return { type: 'maths', raw, text: text.trim(), isBlock }
}

const extensions = [blockMaths, inlineMaths]
const marked = new Marked({ gfm: true, breaks: true, extensions })
const wrapped = new Marked({ gfm: true, extensions })

/** Wrapped, the ends of lines are blanks, as in a file; else they are meant. */
export function parse(text: string, isWrapped = false): Token[] {
  return (isWrapped ? wrapped : marked).lexer(text)
}

const NAMED: Readonly<Record<string, string>> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: '\u00a0',
}

/** The few references that models write; others stay as they are. */
export function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,4}));/gi, (all, decimal, hex, name) => {
    if (name !== undefined) return NAMED[name] ?? all
    const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal)
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : all
  })
}

/** An address that a click may lead to; null for all else. */
export function safeAddress(href: string): string | null {
  const address = URL.parse(href)
  return address !== null && ['http:', 'https:', 'mailto:'].includes(address.protocol) ? address.href : null
}
