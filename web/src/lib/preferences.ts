/** What a visitor chose for this browser: the theme, and what sends. The language is in i18n.ts, the key in api.ts. */
import { effect, signal } from '@preact/signals'

export type Theme = 'system' | 'light' | 'dark'
const THEMES: readonly Theme[] = ['system', 'light', 'dark']
const STORED = 'skein.theme'
const STORED_SENDING = 'skein.sending'
/** Of everything that this browser keeps. */
const PREFIX = 'skein.'

export const theme = signal<Theme>('system')

/** With Enter or Ctrl+Enter; the other begins a line. */
export type Sending = 'enter' | 'ctrl-enter'

export const sending = signal<Sending>(localStorage.getItem(STORED_SENDING) === 'ctrl-enter' ? 'ctrl-enter' : 'enter')

export function setSending(value: Sending): void {
  sending.value = value
  localStorage.setItem(STORED_SENDING, value)
}

/** How many characters this browser keeps. */
export function keptSize(): number {
  return Object.entries(localStorage)
    .filter(([name]) => name.startsWith(PREFIX))
    .reduce((sum, [name, value]) => sum + name.length + String(value).length, 0)
}

/** Begins as a browser that was never here. The key is the tab's. */
export function forgetAll(): void {
  for (const name of Object.keys(localStorage)) {
    if (name.startsWith(PREFIX)) localStorage.removeItem(name)
  }
  location.reload()
}

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
