/**
 * Renders Markdown for a terminal while it is written. Words are printed at once; text that may become markup is held
 * until that is known, at most to the end of its line, and a table to its end. Text that is no markup is printed
 * unchanged.
 */
import { stripVTControlCharacters } from 'node:util'
import type { Paint } from '../terminal/output.ts'

/** Start of a line that may still become a heading, a list item, a fence or a table row. */
const UNDECIDED = /^\s*(#{1,6}|[-*+>]|\d{1,3}[.)]?|`{1,2}|~{1,2})?$/
const HEADING = /^\s*#{1,6}\s+/
const FENCE = /^\s*(```+|~~~+)\s*(.*)$/
/** Limit of the text held from one line. */
const MOST_HELD = 400

export class TerminalMarkdown {
  readonly #paint: Paint
  #pending = ''
  #isLineStart = true
  #isCode = false
  #table: string[] = []

  constructor(paint: Paint) {
    this.#paint = paint
  }

  write(text: string): string {
    this.#pending += text
    let shown = ''
    for (let piece = this.#next(); piece !== null; piece = this.#next()) shown += piece
    return shown
  }

  end(): string {
    if (this.#pending === '' && this.#table.length === 0) return ''
    const shown = this.write(this.#pending.endsWith('\n') ? '' : '\n') + this.#endTable()
    return shown.replace(/\n$/, '')
  }

  /** Null: more text is needed. */
  #next(): string | null {
    if (this.#pending === '') return null
    return this.#isLineStart ? this.#beginLine() : this.#inline()
  }

  #beginLine(): string | null {
    const whole = this.#pending.includes('\n')
    const [line = ''] = this.#pending.split('\n', 1)
    if (this.#isCode || FENCE.test(line)) return whole ? this.#codeLine(this.#takeLine()) : null
    if (/^\s*\|/.test(line)) {
      if (whole) this.#table.push(this.#takeLine())
      return whole ? '' : null
    }
    if (!whole && (UNDECIDED.test(line) || HEADING.test(line))) return null
    return this.#endTable() + this.#prose(line)
  }

  #prose(line: string): string {
    if (HEADING.test(line)) return `${this.#paint('bold', this.#spans(this.#takeLine().replace(HEADING, '')))}\n`
    this.#isLineStart = false
    const [mark = ''] = /^\s*([-*+]\s+|>\s?)/.exec(line) ?? []
    this.#pending = this.#pending.slice(mark.length)
    const isQuote = mark.includes('>')
    return isQuote ? this.#paint('dim', mark.replace('>', '│')) : mark.replace(/[-*+]/, '•')
  }

  #takeLine(): string {
    const end = this.#pending.indexOf('\n')
    const line = this.#pending.slice(0, end)
    this.#pending = this.#pending.slice(end + 1)
    return line
  }

  #codeLine(line: string): string {
    const [, , language = ''] = FENCE.exec(line) ?? []
    if (!FENCE.test(line)) return `  ${this.#paint('cyan', line)}\n`
    this.#isCode = !this.#isCode
    return this.#endTable() + (language === '' ? '' : `  ${this.#paint('dim', language)}\n`)
  }

  /** Words up to the next mark, or a mark and the text it encloses. */
  #inline(): string | null {
    const at = this.#pending.search(/[`*[\n]/)
    if (at !== 0) return this.#take(at < 0 ? this.#pending.length : at)
    if (this.#pending[0] === '\n') {
      this.#isLineStart = true
      return this.#take(1)
    }
    const [line = ''] = this.#pending.split('\n', 1)
    const span = SPAN.exec(line)
    // `**` starts bold; it is not an empty span between two stars. A span may be followed by its own mark.
    const isSure = this.#pending.length > (span?.[0].length ?? MOST_HELD) || line !== this.#pending
    if (!isSure) return null
    return span === null ? this.#take(1) : this.#spans(this.#take(span[0].length))
  }

  #take(length: number): string {
    const taken = this.#pending.slice(0, length)
    this.#pending = this.#pending.slice(length)
    return taken
  }

  #spans(text: string): string {
    return text.replace(
      SPANS,
      (whole, code?: string, bold?: string, italic?: string, link?: string, address?: string) => {
        if (code !== undefined) return this.#paint('cyan', code)
        if (bold !== undefined) return this.#paint('bold', bold)
        if (italic !== undefined) return this.#paint('italic', italic)
        if (link === undefined) return whole
        return `${this.#paint('underline', link)} ${this.#paint('dim', `(${address})`)}`
      },
    )
  }

  #endTable(): string {
    const rows = this.#table.map((row) => cellsOf(this.#spans(row)))
    this.#table = []
    if (rows.length === 0) return ''
    const isRule = (row: readonly string[]) => row.every((cell) => /^:?-+:?$/.test(cell))
    const shown = rows.filter((row) => !isRule(row))
    const count = Math.max(...shown.map((row) => row.length))
    const widths = Array.from({ length: count }, (_, i) => Math.max(...shown.map((row) => columnsOf(row[i] ?? ''))))
    const lines = shown.map((row, i) => {
      const cells = row.map((cell, j) => cell + ' '.repeat(widths[j]! - columnsOf(cell)))
      const line = cells.join('  ').trimEnd()
      return i === 0 ? this.#paint('bold', line) : line
    })
    return `${lines.join('\n')}\n`
  }
}

const SPAN = /^(?:`([^`]+)`|\*\*(?=\S)(.+?)(?<=\S)\*\*|\*(?=[^\s*])([^*]+?)(?<=\S)\*(?!\*)|\[([^\]]+)\]\(([^)\s]+)\))/
const SPANS = new RegExp(SPAN.source.slice(1), 'g')

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]/g

function cellsOf(row: string): string[] {
  const inner = row.trim().replace(/^\||\|$/g, '')
  return inner.split('|').map((cell) => cell.trim())
}

/** Width on a terminal: Chinese, Japanese and Korean characters take two columns, colour codes none. */
function columnsOf(painted: string): number {
  const text = stripVTControlCharacters(painted)
  const wide = text.match(WIDE)
  return [...text].length + (wide?.length ?? 0)
}
