/** What a visitor chose for this browser: the theme. The language is in i18n.ts, the key in api.ts. */
import { effect, signal } from '@preact/signals'

export type Theme = 'system' | 'light' | 'dark'
const THEMES: readonly Theme[] = ['system', 'light', 'dark']
const STORED = 'skein.theme'

export const theme = signal<Theme>('system')

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!
}

export function followTheme(): void {
  const stored = localStorage.getItem(STORED)
  theme.value = THEMES.find((candidate) => candidate === stored) ?? 'system'
  effect(() => {
    document.documentElement.dataset.theme = theme.value
    localStorage.setItem(STORED, theme.value)
  })
}
