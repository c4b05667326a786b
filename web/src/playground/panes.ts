/** The visible conversations, and hidden ones that are still answering. */
import { effect, signal } from '@preact/signals'
import { readSession } from '../conversations/read-session.ts'
import { readTranscript } from '../conversations/transcript.ts'
import { messageOf } from '../lib/errors.ts'
import { route, standAt } from '../lib/router.ts'
import { getSession, openShared, type Session } from '../lib/sessions.ts'
import { newSessionId, Pane } from './pane.ts'
import { modelChoices } from './targets.ts'

const MOST_PANES = 2

/** They outlive the page, so a conversation is still there when the user comes back. */
export const panes = signal<readonly Pane[]>([new Pane()])
/** Hidden, but still answering. */
export const hidden = signal<readonly Pane[]>([])

export type Opening =
  | { readonly state: 'none' }
  | { readonly state: 'loading' }
  | { readonly state: 'failed'; readonly error: string; readonly retry: () => void }

export const opening = signal<Opening>({ state: 'none' })

/** Gives conversations without a model the first one that can answer. A worker alone is taken only if it is asked for. */
effect(() => {
  const choices = modelChoices()
  const first = choices.find(({ isReady }) => isReady) ?? choices[0]
  if (first === undefined) return
  for (const pane of panes.value) if (pane.choice.value === null) pane.choice.value = first
})

/** Writes the visible conversation into the address, so that a reload finds it. */
effect(() => {
  const [first] = panes.value
  const { page, argument, rest } = route.value
  if (page !== 'playground' || opening.value.state !== 'none') return
  const { sessionId, isKept, model, copiedFrom } = first!
  if (sessionId === null || !isKept || model === null) return
  // The address may just name another one that is about to open. A copy gets its own id once it is made.
  const isCopied = rest[1] !== undefined && rest[0] === copiedFrom
  if (argument === null || isCopied) standAt('playground', model, sessionId)
})

/** Shows it in the first place; a running answer there continues. */
function show(pane: Pane): void {
  const [first, ...others] = panes.value
  if (pane === first) return
  const running = [...hidden.value, first!].filter((one) => one.isBusy.value && one !== pane)
  if (!first!.isBusy.value) first!.stop()
  hidden.value = running
  panes.value = [pane, ...others.filter((one) => one !== pane)]
}

export function showNew(): void {
  const before = panes.value[0]!
  opening.value = { state: 'none' }
  const pane = new Pane()
  pane.choice.value = before.choice.value
  pane.settings.value = before.settings.value
  show(pane)
  standAt('playground')
}

/** Shows a fork beside its original. */
export function showBeside(pane: Pane): void {
  for (const other of panes.value.slice(1)) other.stop()
  panes.value = [...panes.value.slice(0, MOST_PANES - 1), pane]
}

export function compare(): void {
  const [first] = panes.value
  const second = new Pane()
  second.choice.value = first!.choice.value
  second.system.value = first!.system.value
  second.settings.value = first!.settings.value
  panes.value = [first!, second]
}

export function close(pane: Pane): void {
  pane.stop()
  panes.value = panes.value.filter((other) => other !== pane)
}

/** Opens the conversation of a session with its text. With `turn`, opens a copy from there. */
export function open(model: string, id: string, turn: number | null): void {
  const live = [...panes.value, ...hidden.value].find((pane) => pane.sessionId === id && pane.model === model)
  if (live !== undefined && turn === null) {
    opening.value = { state: 'none' }
    show(live)
    return
  }
  opening.value = { state: 'loading' }
  const wanted = opening.value
  const retry = () => open(model, id, turn)
  read(model, id, turn).then(
    (pane) => {
      if (opening.value !== wanted) return
      show(pane)
      opening.value = { state: 'none' }
    },
    (thrown: unknown) => {
      if (opening.value !== wanted) return
      opening.value = { state: 'failed', error: messageOf(thrown), retry }
    },
  )
}

/** Copies a shared conversation to this key and opens it. */
export function openLink(model: string, token: string): void {
  opening.value = { state: 'loading' }
  const wanted = opening.value
  const id = newSessionId()
  openShared(model, id, token).then(
    () => {
      if (opening.value !== wanted) return
      // The link must not be opened again: it would make another copy.
      standAt('playground', model, id)
      open(model, id, null)
    },
    (thrown: unknown) => {
      if (opening.value !== wanted) return
      const retry = () => openLink(model, token)
      opening.value = { state: 'failed', error: messageOf(thrown), retry }
    },
  )
}

/** The number of branches that are read. */
const MOST_BRANCHES = 16

async function read(model: string, id: string, turn: number | null): Promise<Pane> {
  const choice = modelChoices().find((one) => one.model === model)
  const target = { base: '', model }
  const session = await getSession(model, id, AbortSignal.timeout(30_000))
  const ends = turn === null ? endsOf(session) : [turn]
  const transcripts = await Promise.all(
    // A branch with unreadable text is still shown, by its state.
    ends.map((end) =>
      readTranscript(target, id, { turn: end }).catch((thrown: unknown) => {
        if (end === (turn ?? session.head)) throw thrown
        return { title: '', skipped_tokens: 0, turns: [] }
      }),
    ),
  )
  const pane = new Pane()
  pane.settings.value = panes.value[0]!.settings.value
  const made = choice ?? { id: model, model, worker: null, isReady: false }
  const shown = turn === null ? session : partTo(session, turn)
  pane.adopt(made, id, readSession(shown, transcripts), turn !== null)
  return pane
}

/** The head first, then the other last turns of branches, newest first. */
function endsOf({ turns, head }: Session): number[] {
  const parents = new Set(turns.map(({ parent }) => parent))
  const ends = turns.map(({ turn }) => turn).filter((turn) => !parents.has(turn) && turn !== head)
  return [...(head > 0 ? [head] : []), ...ends.reverse()].slice(0, MOST_BRANCHES)
}

function partTo(session: Session, turn: number): Pick<Session, 'turns' | 'head'> {
  const byNumber = new Map(session.turns.map((one) => [one.turn, one]))
  const turns = []
  for (let at = byNumber.get(turn); at !== undefined; at = byNumber.get(at.parent)) turns.push(at)
  return { turns, head: turn }
}
