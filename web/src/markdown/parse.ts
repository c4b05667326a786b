/**
 * Parses Markdown, as models write it, into tokens of `marked`'s lexer. Its renderer, which makes markup, is never used.
 * Maths in `$…$`, `$$…$$`, `\(…\)` and `\[…\]` has its own tokens.
 */
import { Lexer, Marked, type Token, Tokenizer, type TokenizerExtension, type Tokens, type TokensList } from 'marked'

export interface MathToken extends Tokens.Generic {
  readonly type: 'maths'
  readonly text: string
  readonly isBlock: boolean
}

const BLOCK = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/
/** Characters in which the end of a formula, or the line under a heading, is looked for. */
const MOST_LOOKED = 2048
/** Quotes, lists and marks inside each other: each level reads what is in it again. */
const MOST_NESTED = 16
/**
 * Characters of a paragraph whose marks are read; a longer one is shown as it is. A mark without an end is looked for in
 * the rest of its paragraph, so the time is that of the square of this, once for each paragraph of this length.
 */
const MOST_INLINE = 8192
// Two prices in a line are not a formula: the closing sign has no space before it and no digit after it.
const INLINE =
  /^(?:\$\$([^$]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s\\$])\$(?!\d)|\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\])/

const blockMaths: TokenizerExtension = {
  name: 'maths',
  level: 'block',
  start: (text) => indexOf(text.slice(0, MOST_INLINE), /\n(?:\$\$|\\\[)/),
  tokenizer(text) {
    const match = BLOCK.exec(text.slice(0, MOST_LOOKED))
    return match === null || isCut(match[0], text) ? undefined : mathsOf(match, true)
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

/** Whether it ends where the look at the text ended, not where the text or a line does. */
function isCut(found: string, text: string): boolean {
  return found.length === MOST_LOOKED && found.length < text.length
}

function indexOf(text: string, pattern: RegExp): number | undefined {
  const at = text.search(pattern)
  return at < 0 ? undefined : at
}

function mathsOf([raw, ...parts]: RegExpExecArray, isBlock: boolean): MathToken {
  const text = parts.find((part) => part !== undefined) ?? ''
  return { type: 'maths', raw, text: text.trim(), isBlock }
}

class BoundedLexer extends Lexer {
  #depth = 0

  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    if (text.length > MOST_INLINE || this.#depth >= MOST_NESTED) return asItIs(text, tokens)
    this.#depth++
    super.inlineTokens(text, tokens)
    this.#depth--
    return tokens
  }

  override blockTokens(text: string, tokens?: Token[], isClipped?: boolean): Token[]
  override blockTokens(text: string, tokens?: TokensList, isClipped?: boolean): TokensList
  override blockTokens(text: string, tokens: Token[] = [], isClipped?: boolean): Token[] {
    if (this.#depth >= MOST_NESTED) return asItIs(text, tokens)
    this.#depth++
    super.blockTokens(text, tokens, isClipped)
    this.#depth--
    return tokens
  }
}

function asItIs(text: string, tokens: Token[]): Token[] {
  tokens.push({ type: 'text', raw: text, text, escaped: false })
  return tokens
}

class BoundedTokenizer extends Tokenizer {
  override lheading(text: string): Tokens.Heading | undefined {
    const heading = super.lheading(text.slice(0, MOST_LOOKED))
    return heading !== undefined && isCut(heading.raw, text) ? undefined : heading
  }
}

const extensions = [blockMaths, inlineMaths]
const tokenizer = new BoundedTokenizer()
const marked = new Marked({ gfm: true, breaks: true, extensions })
const wrapped = new Marked({ gfm: true, extensions })

/** If `isWrapped`, line ends are spaces, as in a file; else they are line breaks. */
export function parse(text: string, isWrapped = false): Token[] {
  return new BoundedLexer({ ...(isWrapped ? wrapped : marked).defaults, tokenizer }).lex(text)
}

const NAMED: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0' }

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
