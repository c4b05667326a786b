/** What commands print besides results: progress on stderr, and JSON. */

import { styleText } from 'node:util'
import { SingleBar } from 'cli-progress'

/** Exit code of a command that Ctrl-C ended, as shells use it. */
export const INTERRUPTED = 130

/** Time between two progress lines if no terminal shows a bar. */
const LINE_MS = 5000

/** A progress bar on a terminal, else a line every few seconds. Ends itself at 100 %. */
export function progressBar(
  label: string,
  format: (amount: number) => string = formatBytes,
): (done: number, total: number) => void {
  if (!process.stderr.isTTY) return progressLines(label, format)
  const bar = new SingleBar({
    format: `${label} {bar} {percentage}% {done}/{whole}`,
    stream: process.stderr,
    clearOnComplete: true,
  })
  let isStarted = false
  return (done, total) => {
    const payload = { done: format(done), whole: format(total) }
    if (isStarted) bar.update(done, payload)
    else bar.start(total, done, payload)
    isStarted = true
    if (done >= total) bar.stop()
  }
}

function progressLines(label: string, format: (amount: number) => string): (done: number, total: number) => void {
  let next = performance.now() + LINE_MS
  return (done, total) => {
    if (done >= total || performance.now() < next) return
    next = performance.now() + LINE_MS
    const percentage = Math.floor((100 * done) / total)
    process.stderr.write(`${label} ${percentage}% ${format(done)}/${format(total)}\n`)
  }
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB']
  const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3))
  const value = bytes / 1000 ** power
  return `${value >= 100 || power === 0 ? value.toFixed(0) : value.toPrecision(3)} ${units[power]}`
}

export function formatCount(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toPrecision(3)}B`
  if (count >= 1e6) return `${(count / 1e6).toPrecision(3)}M`
  return String(count)
}

export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

/** Prints rows in columns; the first row is the heading. Columns of numbers are right-aligned. */
export function printTable(rows: readonly (readonly string[])[]): void {
  const columns = rows[0]!.map((_, i) => {
    const cells = rows.map((row) => row[i]!)
    const isNumeric = cells.length > 1 && cells.slice(1).every((cell) => /^[-\d.,%×\s]+$/.test(cell))
    return { isNumeric, width: Math.max(...cells.map((cell) => cell.length)) }
  })
  for (const row of rows) {
    const cells = row.map((cell, i) => {
      const { isNumeric, width } = columns[i]!
      return isNumeric ? cell.padStart(width) : cell.padEnd(width)
    })
    process.stdout.write(`${cells.join('  ').trimEnd()}\n`)
  }
}

type Style = 'bold' | 'dim' | 'italic' | 'underline' | 'cyan' | 'green' | 'yellow' | 'red'

export type Paint = (style: Style, text: string) => string

/** https://no-color.org; Node knows what TERM, COLORTERM and FORCE_COLOR mean. */
export function hasColours(stream: Pick<NodeJS.WriteStream, 'isTTY' | 'hasColors'>): boolean {
  return stream.isTTY === true && !process.env.NO_COLOR && stream.hasColors()
}

export const plain: Paint = (_style, text) => text

// styleText would wrap even an empty text in codes.
export const coloured: Paint = (style, text) => (text === '' ? '' : styleText(style, text, { validateStream: false }))
