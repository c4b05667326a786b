/** The conversations of this key: what the server has, with the names that this browser gives them. */
import { effect, signal } from '@preact/signals'
import { keyChanges } from '../lib/api.ts'
import { messageOf } from '../lib/errors.ts'
import { models, returns } from '../lib/live.ts'
import { deleteSession, listSessions, type Session } from '../lib/sessions.ts'
import { dropNote, note, noteOf } from './notes.ts'
import type { Conversation } from './periods.ts'
import { readTranscript } from './transcript.ts'

/** Latest first; null until it has come. */
export const conversations = signal<readonly Conversation[] | null>(null)
export const listError = signal<string | null>(null)

/** Of a model and no more: lists are for looking through. */
const MOST_LISTED = 200
/** Titles that nobody knows yet are asked for one after the other, of so many. */
const MOST_TITLES = 60

/** Kept up to date while it is shown: with each key, and whenever models come or the server is back. */
export function followConversations(): () => void {
  let abort = new AbortController()
  const stop = effect(() => {
    keyChanges.value
    returns.value
    const names = readyModels()
    abort.abort()
    abort = new AbortController()
    void refresh(names, abort.signal)
  })
  return () => {
    abort.abort()
    stop()
  }
}

function readyModels(): string[] {
  return (models.value ?? []).filter(({ root, state }) => root === undefined && state === 'ready').map(({ id }) => id)
}

async function refresh(names: readonly string[], stop: AbortSignal): Promise<void> {
  if (models.value === null) return
  try {
    const lists = await Promise.all(
      names.map(async (model) =>
        (await listSessions(model, stop, MOST_LISTED)).map((one) => conversationOf(model, one)),
      ),
    )
    conversations.value = lists.flat().sort((a, b) => b.updated - a.updated)
    listError.value = null
    await findTitles(conversations.value.slice(0, MOST_TITLES), stop)
  } catch (thrown) {
    if (!stop.aborted) listError.value = messageOf(thrown)
  }
}

function conversationOf(model: string, { id, updated, turns }: Session): Conversation {
  return { model, id, updated, numTurns: turns.length }
}

async function findTitles(list: readonly Conversation[], stop: AbortSignal): Promise<void> {
  for (const { model, id } of list) {
    if (stop.aborted) return
    if (noteOf(model, id)?.title !== undefined) continue
    // One that has gone meanwhile, or cannot be read, is listed by its id.
    await readTranscript({ base: '', model }, id, { limit: 0 }, stop).then(
      ({ title }) => note(model, id, { title }),
      () => {},
    )
  }
}

/** Its own name, its first words, or what the server calls it. */
export function nameOf({ model, id }: Pick<Conversation, 'model' | 'id'>): string {
  const found = noteOf(model, id)
  return found?.name || found?.title || id
}

/** A turn of it was just made here. */
export function touch(model: string, id: string, title: string, numTurns: number): void {
  const updated = Date.now() / 1000
  if (title !== '' && noteOf(model, id)?.title === undefined) note(model, id, { title })
  const others = (conversations.value ?? []).filter((one) => one.id !== id || one.model !== model)
  conversations.value = [{ model, id, updated, numTurns }, ...others]
}

/** Those that could not be deleted stay; the first reason is thrown. */
export async function deleteConversations(list: readonly Conversation[]): Promise<void> {
  let failure: unknown = null
  for (const { model, id } of list) {
    try {
      await deleteSession(model, id)
      drop(model, id)
    } catch (thrown) {
      failure ??= thrown
    }
  }
  if (failure !== null) throw failure
}

function drop(model: string, id: string): void {
  dropNote(model, id)
  conversations.value = conversations.value?.filter((one) => one.id !== id || one.model !== model) ?? null
}
