/** One chart as inline SVG: dots, steps or bars over two linear axes that begin at zero. Knows nothing of what it shows. */

export interface Point {
  readonly x: number
  readonly y: number
}

interface Series {
  readonly name: string
  readonly kind: 'dots' | 'steps' | 'bars'
  /** Ascending x. A bar reaches from its x to the next one's. */
  readonly points: readonly Point[]
}

export interface Chart {
  readonly title: string
  readonly xLabel: string
  readonly yLabel: string
  readonly series: readonly Series[]
}

const WIDTH = 720
const HEIGHT = 260
const MARGIN = { top: 12, right: 16, bottom: 40, left: 64 }

type Scale = (value: number) => number

export function renderChart({ title, xLabel, yLabel, series }: Chart): string {
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
      return points
        .map((point) => `<circle cx="${round(x(point.x))}" cy="${round(y(point.y))}" r="2"/>`)
        .join('')
    case 'steps': {
      const steps = points.map(
        (point, i) =>
          `${i === 0 ? 'M' : 'H'}${round(x(point.x))}${i === 0 ? ' ' : 'V'}${round(y(point.y))}`,
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

/** From 0 to at least `max` in four to nine steps of 1, 2 or 5 times a power of ten. */
export function ticks(max: number): number[] {
  if (!(max > 0)) return [0, 1]
  const power = 10 ** Math.floor(Math.log10(max / 4))
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => max / size <= 8)!
  const count = Math.ceil(max / step)
  // Multiplied, not summed, so that 0.3 is not 0.30000000000000004; toPrecision mends the product.
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

export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
}
