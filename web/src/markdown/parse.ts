/**
 * Parses Markdown, as models write it, into tokens of `marked`'s lexer. Its renderer, which makes markup, is never used.
 * Maths in `$…$`, `$$…$$`, `\(…\)` and `\[…\]` has its own tokens.
 */
import { Marked, type Token, type TokenizerExtension, type Tokens } from 'marked'

export interface MathToken extends Tokens.Generic {
  readonly type: 'maths'
  readonly text: string
  readonly isBlock: boolean
}

const BLOCK = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/
// Two prices in a line are not a formula: the closing sign has no space before it and no digit after it.
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

/** If `isWrapped`, line ends are spaces, as in a file; else they are line breaks. */
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

/** Decodes the few character references that models write; others stay. */
export function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,4}));/gi, (all, decimal, hex, name) => {
    if (name !== undefined) return NAMED[name] ?? all
    const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal)
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : all
  })
}

/** Returns an address that a link may have, or null. */
export function safeAddress(href: string): string | null {
  const address = URL.parse(href)
  return address !== null && ['http:', 'https:', 'mailto:'].includes(address.protocol) ? address.href : null
}
