/** A text file as part of a message: a code block under its name. */
import type { Text } from '../lib/i18n.ts'

const MOST_BYTES = 256 * 1024

export type ReadFile = { readonly text: string } | { readonly error: Text }

export async function readTextFile(file: File): Promise<ReadFile> {
  if (file.size > MOST_BYTES) return { error: '{name} is larger than 256 KB' }
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer())
    return text.includes('\0') ? { error: '{name} is not a text file' } : { text }
  } catch {
    return { error: '{name} is not a text file' }
  }
}

/** Uses a fence longer than any in the text. */
export function asQuoted(name: string, text: string): string {
  const runs = [...text.matchAll(/`{3,}/g)].map(([run]) => run.length)
  const fence = '`'.repeat(Math.max(3, ...runs.map((length) => length + 1)))
  const [, language = ''] = /\.(\w{1,12})$/.exec(name) ?? []
  return `${name}:\n${fence}${language}\n${text.replace(/\n$/, '')}\n${fence}`
}
