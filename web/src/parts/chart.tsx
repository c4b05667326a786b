/** A line chart of samples over time. The legend shows the newest values, or those under the pointer. */
import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import type { Sample } from '../../../src/gateway/contract.ts'
import { t } from '../lib/i18n.ts'
import { theme } from '../lib/preferences.ts'
import { columns } from '../lib/stats.ts'

interface Line {
  readonly label: string
  readonly read: (sample: Sample) => number | null | undefined
  readonly isDashed?: boolean
}

interface ChartProps {
  readonly title: string
  readonly lines: readonly Line[]
  readonly samples: readonly Sample[]
  readonly seconds: number
  readonly format: (value: number | null | undefined) => string
  /** The upper end of the scale, if fixed. */
  readonly max?: number
}

const HEIGHT = 150

export function Chart({ title, lines, samples, seconds, format, max }: ChartProps) {
  const place = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const [pointed, setPointed] = useState<number | null>(null)
  const shades = useShades()
  const data = columns(
    samples,
    lines.map(({ read }) => read),
  )
  const latest = useRef({ data, seconds })
  latest.current = { data, seconds }

  // A new chart is made only when colours or lines change; samples go into the existing chart.
  useEffect(() => {
    const element = place.current!
    const made = new uPlot(
      optionsOf(element, lines, format, max, () => latest.current.seconds, setPointed),
      latest.current.data,
      element,
    )
    plot.current = made
    const watcher = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }))
    watcher.observe(element)
    return () => {
      watcher.disconnect()
      made.destroy()
    }
  }, [shades, lines.map(({ label }) => label).join()])

  useEffect(() => plot.current?.setData(data))

  const index = pointed ?? data[0].length - 1
  const values = lines.map((_, i) => data[i + 1]?.[index] ?? null)
  const said = lines.map(({ label }, i) => `${label} ${format(values[i])}`).join(', ')
  const isEmpty = data.slice(1).every((column) => column.every((value) => value === null))
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="legend">
          {lines.map(({ label }, i) => (
            <span key={label} class={`line-${i}`}>
              <i />
              {label} <b>{format(values[i])}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${title}: ${said}`} />
      {isEmpty && <p class="chart-empty">{t('Nothing yet')}</p>}
    </figure>
  )
}

/** Changes when the theme changes, by the setting or by the system. */
function useShades(): string {
  const [isDark, setDark] = useState(() => matchMedia('(prefers-color-scheme: dark)').matches)
  useEffect(() => {
    const query = matchMedia('(prefers-color-scheme: dark)')
    const read = () => setDark(query.matches)
    query.addEventListener('change', read)
    return () => query.removeEventListener('change', read)
  }, [])
  return `${theme.value}-${isDark}`
}

function optionsOf(
  element: HTMLElement,
  lines: readonly Line[],
  format: ChartProps['format'],
  max: number | undefined,
  seconds: () => number,
  onPoint: (index: number | null) => void,
): uPlot.Options {
  const colour = (name: string) => colourOf(element, name)
  const axis = { stroke: colour('muted'), font: '11px system-ui', ticks: { show: false } }
  const grid = { stroke: colour('rule'), width: 1 }
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 24, 0, 0],
    cursor: { sync: { key: 'samples' }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: (_plot, _low, high) => [high - seconds(), high] },
      y: { range: (_plot, _low, high) => [0, max ?? Math.max(high * 1.15, 1)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 70, values: clockTimes },
      { ...axis, grid, size: 48, space: 34, values: (_plot, ticks) => ticks.map(format) },
    ],
    series: [
      {},
      ...lines.map(({ label, isDashed = false }, i) => ({
        label,
        stroke: colour(`line-${i}`),
        width: 1.5,
        points: { show: false },
        ...(isDashed ? { dash: [4, 4] } : {}),
        ...(i === 0 ? { fill: colour('line-fill') } : {}),
      })),
    ],
    hooks: { setCursor: [({ cursor }) => onPoint(cursor.idx ?? null)] },
  }
}

function clockTimes(_plot: uPlot, ticks: number[]): string[] {
  return ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString('en-GB').slice(0, 8))
}

/** A canvas does not use style sheets, so the colour is read from an element with the class. */
function colourOf(place: HTMLElement, name: string): string {
  const probe = document.createElement('span')
  probe.className = name
  place.append(probe)
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}
