/**
 * What this browser stores about conversations: the first words, so that a list has titles at once, and the user's
 * name, pin and folder. The server stores the messages and states.
 */
import { signal } from '@preact/signals'

export interface Note {
  /** The first words, once known. */
  readonly title?: string
  readonly name?: string
  readonly isPinned?: boolean
  /** Given by the user; '': none. */
  readonly folder?: string
  /** When it was last written, in milliseconds of Date.now(). */
  readonly at: number
}

const STORED = 'skein.conversations'
const MOST_NOTES = 1000

export const notes = signal<Readonly<Record<string, Note>>>(readNotes())

export function noteOf(model: string, id: string): Note | undefined {
  return notes.value[keyOf(model, id)]
}

export function note(model: string, id: string, change: Omit<Note, 'at'>): void {
  const key = keyOf(model, id)
  const entries = Object.entries({ ...notes.value, [key]: { ...notes.value[key], ...change, at: Date.now() } })
  const kept = entries.sort(([, a], [, b]) => b.at - a.at).slice(0, MOST_NOTES)
  write(Object.fromEntries(kept))
}

export function dropNote(model: string, id: string): void {
  const { [keyOf(model, id)]: _, ...rest } = notes.value
  write(rest)
}

/** The distinct words that begin with #, sorted. */
export function tagsOf(names: readonly string[]): string[] {
  const words = names.flatMap((name) => name.match(/(?<!\S)#[^\s#]+/g) ?? [])
  return [...new Set(words)].sort((a, b) => a.localeCompare(b))
}

/** Of all conversations, sorted. */
export function folders(): string[] {
  const named = Object.values(notes.value).map(({ folder = '' }) => folder)
  return [...new Set(named)].filter((one) => one !== '').sort((a, b) => a.localeCompare(b))
}

function keyOf(model: string, id: string): string {
  return `${model}/${id}`
}

function write(all: Readonly<Record<string, Note>>): void {
  notes.value = all
  try {
    localStorage.setItem(STORED, JSON.stringify(all))
  } catch {
    // The browser's storage is full: the list lives as long as the page.
  }
}

function readNotes(): Readonly<Record<string, Note>> {
  try {
    const read: unknown = JSON.parse(localStorage.getItem(STORED) ?? '{}')
    // Only this file writes it. Users who edit it can damage only their own list.
    return typeof read === 'object' && read !== null ? (read as Record<string, Note>) : {}
  } catch {
    return {}
  }
}
