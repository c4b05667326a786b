/** A run as a self-contained HTML page with figures and charts. */
import type { ServeBench } from './bench.ts'
import { figureRows, headline, timeRows, warnings } from './report.ts'
import { percentile, type RequestResult, runningOverTime } from './statistics.ts'

/** Limits that keep the page small for long runs: dots and steps of a chart, bars of a histogram. */
const MAX_DOTS = 2000
const MAX_STEPS = 1000
const BARS = 40

const STYLE = `
:root { color-scheme: light dark; --ink: #222; --quiet: #777; --rule: #ddd; --one: #2266bb; --two: #d9741a; --ground: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --quiet: #999; --rule: #3a3a3a; --one: #6aa9f0; --two: #f0a050; --ground: #181818 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 760px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 1.5rem 0 .25rem } p { margin: .25rem 0; color: var(--quiet) }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
td, th { padding: .15rem 1rem .15rem 0; text-align: right; font-weight: normal } td:first-child, th:first-child { text-align: left }
svg { width: 100%; font: 11px system-ui, sans-serif } svg text { fill: var(--quiet) } svg line { stroke: var(--rule) }
.series0 { fill: var(--one); stroke: none } .series1 { fill: var(--two); stroke: none } svg path { fill: none; stroke: var(--one) }
.key0 { color: var(--one) } .key1 { color: var(--two) } .warning { color: var(--two) }
`

/** `setting` is the command line of the run. */
export function htmlReport(bench: ServeBench, setting: string, date: Date): string {
  const tables = [timeRows(bench), figureRows(bench)].map(table)
  const charts = [latencyChart, runningChart, ttftChart, itlChart].map((make) => make(bench))
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${escapeHtml(headline(bench))}</title><style>${STYLE}</style>
<h1>${escapeHtml(headline(bench))}</h1>
<p>${escapeHtml(setting)}</p>
<p>model ${escapeHtml(bench.model ?? 'of the server')}, ${date.toISOString()}</p>
${warnings(bench)
  .map((text) => `<p class="warning">${escapeHtml(text)}</p>`)
  .join('\n')}
${tables.join('\n')}
${charts
  .filter(({ series }) => series.some(({ points }) => points.length > 0))
  .map(section)
  .join('\n')}
</html>
`
}

function table(rows: readonly (readonly string[])[]): string {
  const cells = rows.map((row) => row.map((cell) => `<td>${escapeHtml(cell)}</td>`).join(''))
  return `<table>${cells.map((row) => `<tr>${row}</tr>`).join('')}</table>`
}

function section(chart: Chart): string {
  const key =
    chart.series.length < 2 ? '' : chart.series.map(({ name }, i) => `<span class="key${i}">● ${name}</span>`).join(' ')
  return `<h2>${escapeHtml(chart.title)} ${key}</h2>${renderChart(chart)}`
}

/** When each request was sent, its latency, and its time to first text. */
function latencyChart({ requests }: ServeBench): Chart {
  const good = evenly(succeeded(requests), MAX_DOTS)
  const e2e = good.map(({ sentMs, e2eMs }) => ({ x: sentMs / 1000, y: e2eMs }))
  const ttft = good.flatMap(({ sentMs, answers }) =>
    answers.slice(0, 1).flatMap(({ firstMs }) => (firstMs === null ? [] : [{ x: sentMs / 1000, y: firstMs }])),
  )
  const title =
    good.length < succeeded(requests).length
      ? `Latency of ${good.length} requests, evenly picked`
      : 'Latency of each request'
  return {
    title,
    xLabel: 'sent at, s',
    yLabel: 'ms',
    series: [
      { name: 'E2E', kind: 'dots', points: e2e },
      { name: 'TTFT', kind: 'dots', points: ttft },
    ],
  }
}

function succeeded(requests: readonly RequestResult[]): RequestResult[] {
  return requests.filter(({ failure }) => failure === null)
}

function evenly<T>(values: readonly T[], count: number): T[] {
  if (values.length <= count) return [...values]
  return Array.from({ length: count }, (_, i) => values[Math.floor((i * values.length) / count)]!)
}

/** In a long run each step shows the maximum of its interval, so that no peak is lost. */
function runningChart({ requests, summary }: ServeBench): Chart {
  const changes = runningOverTime(requests)
  const stepMs = summary.durationMs / MAX_STEPS
  const most = new Map<number, number>()
  for (const { ms, running } of changes) {
    const step = Math.floor(ms / stepMs)
    most.set(step, Math.max(most.get(step) ?? 0, running))
  }
  const points =
    changes.length <= MAX_STEPS
      ? changes.map(({ ms, running }) => ({ x: ms / 1000, y: running }))
      : [...most].map(([step, running]) => ({ x: (step * stepMs) / 1000, y: running }))
  return {
    title: 'Requests in flight',
    xLabel: 's',
    yLabel: 'requests',
    series: [{ name: 'running', kind: 'steps', points }],
  }
}

function ttftChart({ requests }: ServeBench): Chart {
  const times = succeeded(requests).flatMap(({ answers }) =>
    answers.flatMap(({ firstMs }) => (firstMs === null ? [] : [firstMs])),
  )
  return histogram('Time to first token', times, 'answers')
}

function itlChart({ requests }: ServeBench): Chart {
  const gaps = succeeded(requests).flatMap(({ answers }) => answers.flatMap(({ gapsMs }) => gapsMs))
  return histogram('Inter-token latency', gaps, 'gaps')
}

/** Counts from 0 to the 99th percentile; the top one percent would flatten the rest. */
function histogram(title: string, values: readonly number[], yLabel: string): Chart {
  const points = values.length === 0 ? [] : bins(Float64Array.from(values).sort())
  return { title: `${title}, up to its p99`, xLabel: 'ms', yLabel, series: [{ name: title, kind: 'bars', points }] }
}

function bins(sorted: Float64Array): Point[] {
  const max = percentile(sorted, 99)
  // Events that arrive together have zero gaps, and perhaps all do.
  const width = (max || 1) / BARS
  const counts = new Array<number>(BARS).fill(0)
  for (const value of sorted) {
    if (value > max) break
    counts[Math.min(BARS - 1, Math.floor(value / width))]!++
  }
  return [...counts, 0].map((count, i) => ({ x: i * width, y: count }))
}

interface Point {
  readonly x: number
  readonly y: number
}

interface Series {
  readonly name: string
  readonly kind: 'dots' | 'steps' | 'bars'
  /** In ascending x. A bar reaches from its x to the next one's. */
  readonly points: readonly Point[]
}

interface Chart {
  readonly title: string
  readonly xLabel: string
  readonly yLabel: string
  readonly series: readonly Series[]
}

const WIDTH = 720
const HEIGHT = 260
const MARGIN = { top: 12, right: 16, bottom: 40, left: 64 }

type Scale = (value: number) => number

/** A chart as inline SVG: dots, steps or bars over two linear axes that start at zero. */
function renderChart({ title, xLabel, yLabel, series }: Chart): string {
  const points = series.flatMap((one) => one.points)
  const xTicks = ticks(largest(points.map(({ x }) => x)))
  const yTicks = ticks(largest(points.map(({ y }) => y)))
  const right = WIDTH - MARGIN.right
  const bottom = HEIGHT - MARGIN.bottom
  const x = scale(xTicks.at(-1)!, MARGIN.left, right)
  const y = scale(yTicks.at(-1)!, bottom, MARGIN.top)
  const parts = [
    ...yTicks.map((tick) => line(MARGIN.left, y(tick), right, y(tick))),
    ...yTicks.map((tick) => label(MARGIN.left - 8, y(tick) + 4, 'end', tickText(tick))),
    ...xTicks.map((tick) => label(x(tick), bottom + 16, 'middle', tickText(tick))),
    label((MARGIN.left + right) / 2, HEIGHT - 6, 'middle', xLabel),
    `<text transform="translate(14 ${(MARGIN.top + bottom) / 2}) rotate(-90)" text-anchor="middle">${escapeHtml(yLabel)}</text>`,
    ...series.map((one, i) => `<g class="series${i}">${drawn(one, x, y)}</g>`),
  ]
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escapeHtml(title)}">${parts.join('')}</svg>`
}

function drawn({ kind, points }: Series, x: Scale, y: Scale): string {
  switch (kind) {
    case 'dots':
      return points.map((point) => `<circle cx="${round(x(point.x))}" cy="${round(y(point.y))}" r="2"/>`).join('')
    case 'steps': {
      const steps = points.map(
        (point, i) => `${i === 0 ? 'M' : 'H'}${round(x(point.x))}${i === 0 ? ' ' : 'V'}${round(y(point.y))}`,
      )
      return `<path d="${steps.join('')}"/>`
    }
    case 'bars':
      return points.map((point, i) => bar(point, points[i + 1], x, y)).join('')
  }
}

/** The last point only closes the bar before it. */
function bar(from: Point, to: Point | undefined, x: Scale, y: Scale): string {
  if (to === undefined || from.y === 0) return ''
  const width = Math.max(0.5, x(to.x) - x(from.x) - 1)
  const height = y(0) - y(from.y)
  return `<rect x="${round(x(from.x))}" y="${round(y(from.y))}" width="${round(width)}" height="${round(height)}"/>`
}

/** From 0 to at least `max`, in four to nine steps of 1, 2 or 5 times a power of ten. */
export function ticks(max: number): number[] {
  if (!(max > 0)) return [0, 1]
  const power = 10 ** Math.floor(Math.log10(max / 4))
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => max / size <= 8)!
  const count = Math.ceil(max / step)
  // Multiplied, not summed, to avoid 0.30000000000000004; toPrecision corrects the product.
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(12)))
}

function largest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), 0)
}

function scale(max: number, from: number, to: number): Scale {
  return (value) => from + (value / max) * (to - from)
}

function line(x1: number, y1: number, x2: number, y2: number): string {
  return `<line x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"/>`
}

function label(x: number, y: number, anchor: string, text: string): string {
  return `<text x="${round(x)}" y="${round(y)}" text-anchor="${anchor}">${escapeHtml(text)}</text>`
}

function tickText(value: number): string {
  return value.toLocaleString('en', { maximumSignificantDigits: 6 })
}

function round(value: number): string {
  return String(Number(value.toFixed(1)))
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
}
