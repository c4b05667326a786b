import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'

const css = readFileSync(join(import.meta.dirname, '../../web/src/style/base.css'), 'utf8')

/** name → [light, dark] */
const COLOURS = Object.fromEntries(
  [...css.matchAll(/--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)/g)].map(
    ([, name, light, dark]) => [name!, [light!, dark!]] as const,
  ),
)

/** Text colours and their backgrounds. */
const PAIRS = [
  ['ink', 'ground'],
  ['ink', 'panel'],
  ['ink', 'sunken'],
  ['muted', 'ground'],
  ['muted', 'panel'],
  ['muted', 'sunken'],
  ['accent', 'ground'],
  ['accent', 'panel'],
  ['accent', 'accent-soft'],
  ['accent-ink', 'accent'],
  ['good', 'panel'],
  ['bad', 'panel'],
  ['bad', 'ground'],
  ['bad', 'bad-soft'],
] as const

/** Relative luminance, as WCAG has it. */
function luminance(hex: string): number {
  const [r, g, b] = [0, 2, 4].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
  })
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!
}

function contrast(a: string, b: string): number {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y)
  return (light! + 0.05) / (dark! + 0.05)
}

describe.each([
  ['light', 0],
  ['dark', 1],
] as const)('in %s', (_name, mode) => {
  test.each(PAIRS)('%s on %s is readable', (text, ground) => {
    expect(contrast(COLOURS[text]![mode], COLOURS[ground]![mode])).toBeGreaterThanOrEqual(4.5)
  })

  test('lines of charts stand out from the panel', () => {
    for (const line of ['line-0', 'line-1', 'line-2']) {
      expect(contrast(COLOURS[line]![mode], COLOURS.panel![mode])).toBeGreaterThanOrEqual(3)
    }
  })
})
