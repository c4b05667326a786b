/** The conversations of this key: the server's list, with the names that this browser gives them. */
import { effect, signal } from '@preact/signals'
import { keyChanges } from '../lib/api.ts'
import { messageOf } from '../lib/errors.ts'
import { models, returns } from '../lib/live.ts'
import { deleteSession, listConversations, type Session } from '../lib/sessions.ts'
import { dropNote, note, noteOf } from './notes.ts'
import type { Conversation } from './periods.ts'
import { readTranscript } from './transcript.ts'

/** Latest first; null until loaded. */
export const conversations = signal<readonly Conversation[] | null>(null)
export const listError = signal<string | null>(null)

/** The most conversations listed per model. */
const MOST_LISTED = 200
/** How many unknown titles are fetched, one after the other. */
const MOST_TITLES = 60

/** Reloads while shown: for each new key, and when models change or the server is back. */
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

/** For which key the conversations were listed. */
let listedFor = -1

async function refresh(names: readonly string[], stop: AbortSignal): Promise<void> {
  const served = models.value
  if (served === null) return
  if (listedFor !== keyChanges.peek()) conversations.value = null
  listedFor = keyChanges.peek()
  try {
    const lists = await Promise.all(
      names.map(async (model) =>
        (await listConversations(model, stop, MOST_LISTED)).map((one) => conversationOf(model, one)),
      ),
    )
    // Those of a model that is being started again come back with it.
    const away = served.filter(({ state }) => state !== 'ready').map(({ id }) => id)
    const kept = (conversations.value ?? []).filter(({ model }) => away.includes(model))
    conversations.value = [...lists.flat(), ...kept].sort((a, b) => b.updated - a.updated)
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
    // A conversation that is gone or unreadable is listed by its id.
    await readTranscript({ base: '', model }, id, { limit: 0 }, stop).then(
      ({ title }) => note(model, id, { title }),
      () => {},
    )
  }
}

/** The name given by the user, the first words, or the server's name. */
export function nameOf({ model, id }: Pick<Conversation, 'model' | 'id'>): string {
  const found = noteOf(model, id)
  return found?.name || found?.title || id
}

/** Call after a turn was made here. */
export function touch(model: string, id: string, title: string, numTurns: number): void {
  const updated = Date.now() / 1000
  if (title !== '' && noteOf(model, id)?.title === undefined) note(model, id, { title })
  const others = (conversations.value ?? []).filter((one) => one.id !== id || one.model !== model)
  conversations.value = [{ model, id, updated, numTurns }, ...others]
}

/** Conversations that could not be deleted stay. Throws the first reason. */
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
