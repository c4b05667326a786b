/** English and Chinese. A text is named by its English form; the compiler checks that each has a Chinese one. */
import { effect, signal } from '@preact/signals'
import { CHINESE } from './chinese.ts'

export type Language = 'en' | 'zh'
export type Text = keyof typeof CHINESE

const STORED = 'skein.language'

export const language = signal<Language>('en')

export function t(text: Text, values: Readonly<Record<string, string | number>> = {}): string {
  const template: string = language.value === 'zh' ? CHINESE[text] : text
  return template.replace(/\{(\w+)\}/g, (all, name: string) => String(values[name] ?? all))
}

export function setLanguage(value: Language): void {
  language.value = value
  localStorage.setItem(STORED, value)
}

export function toggleLanguage(): void {
  setLanguage(language.value === 'en' ? 'zh' : 'en')
}

export function followLanguage(): void {
  const chosen = localStorage.getItem(STORED) ?? navigator.language
  language.value = chosen.startsWith('zh') ? 'zh' : 'en'
  effect(() => {
    document.documentElement.lang = language.value === 'zh' ? 'zh-CN' : 'en'
  })
}
