/** Choices kept in this browser: the theme and the sending key. The language is in i18n.ts, the API key in api.ts. */
import { effect, signal } from '@preact/signals'

export type Theme = 'system' | 'light' | 'dark'
const THEMES: readonly Theme[] = ['system', 'light', 'dark']
const STORED = 'skein.theme'
const STORED_SENDING = 'skein.sending'
/** Prefix of all that this browser stores. */
const PREFIX = 'skein.'

export const theme = signal<Theme>('system')

/** Enter or Ctrl+Enter sends; the other starts a new line. */
export type Sending = 'enter' | 'ctrl-enter'

export const sending = signal<Sending>(localStorage.getItem(STORED_SENDING) === 'ctrl-enter' ? 'ctrl-enter' : 'enter')

export function setSending(value: Sending): void {
  sending.value = value
  localStorage.setItem(STORED_SENDING, value)
}

/** The number of characters that this browser stores. */
export function keptSize(): number {
  return Object.entries(localStorage)
    .filter(([name]) => name.startsWith(PREFIX))
    .reduce((sum, [name, value]) => sum + name.length + String(value).length, 0)
}

/** Clears everything that this browser stores. The key belongs to the tab. */
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
