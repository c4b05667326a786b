/** Formats numbers, sizes and times. Only ages depend on the language. */
import { t } from './i18n.ts'

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB']

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–'
  let unit = 0
  let size = value
  // A value that would round to 1000 becomes 1.00 of the next unit.
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000
    unit++
  }
  return `${unit === 0 || size >= 1000 ? Math.round(size) : size.toPrecision(3)} ${UNITS[unit]}`
}

/** 0.4 · 12.3 · 1,234 · 12.3k · 4.56M */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–'
  const size = Math.abs(value)
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)}B`
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString('en')
  return value.toFixed(1)
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–'
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`
  return value >= 10 || value === 0 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return '–'
  return `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`
}

/** "12 s", "3 min", "5 h", "2 d" */
export function age(seconds: number): string {
  const s = Math.max(0, Math.round(seconds))
  if (s < 60) return t('{n} s', { n: s })
  if (s < 3600) return t('{n} min', { n: Math.floor(s / 60) })
  if (s < 48 * 3600) return t('{n} h', { n: Math.floor(s / 3600) })
  return t('{n} d', { n: Math.floor(s / 86400) })
}

export function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString('en-GB')
}

export function fileName(path: string): string {
  return path.split(/[/\\]/).at(-1) ?? path
}

/** Name of a checkpoint: its path without the suffix. */
export function bareName(path: string): string {
  return path.replace(/\.(pth|safetensors|gguf|st|bin)$/i, '')
}
