/** The target of a conversation: a model, on a worker that the server chooses, or one given worker. */
import type { Target } from '../lib/chat.ts'
import { type ModelEntry, models, workers } from '../lib/live.ts'

export interface Choice {
  /** "demo", or "demo@wkr-1234567890" for one worker. */
  readonly id: string
  readonly model: string
  /** Null: any. */
  readonly worker: string | null
  readonly isReady: boolean
}

export function targetOf({ model, worker }: Choice): Target {
  const base = worker === null ? '' : `/api/workers/${encodeURIComponent(worker)}/proxy`
  return { base, model }
}

/** Models by all their names; `personasOf` has their start states. */
export function modelChoices(): Choice[] {
  return (models.value ?? []).filter((entry) => !isPersona(entry)).map(choiceOf)
}

export interface Persona {
  readonly name: string
  readonly choice: Choice
}

/** The start states of a model. */
export function personasOf(model: string): Persona[] {
  const root = rootOf(model)
  return (models.value ?? [])
    .filter((entry) => isPersona(entry) && entry.root === root)
    .map((entry) => ({ name: entry.id.slice(root.length + 1), choice: choiceOf(entry) }))
}

/** The model that a name means. */
export function rootOf(name: string): string {
  return models.value?.find(({ id }) => id === name)?.root ?? name.split('@', 1)[0]!
}

function choiceOf({ id, state }: ModelEntry): Choice {
  return { id, model: id, worker: null, isReady: state === 'ready' }
}

function isPersona({ id, root }: ModelEntry): boolean {
  return root !== undefined && id.startsWith(`${root}@`)
}

export function workerChoices(): Choice[] {
  return workers.value
    .filter(({ status }) => status === 'running')
    .map(({ worker_id, model, phase }) => ({
      id: `${model}@${worker_id}`,
      model,
      worker: worker_id,
      isReady: phase === 'ready',
    }))
}

/** The choice, if it is still there, else the first model. */
export function currentOf(choice: Choice | null): Choice | null {
  const all = allChoices()
  return all.find(({ id }) => id === choice?.id) ?? all[0] ?? null
}

export function allChoices(): Choice[] {
  const personas = (models.value ?? []).filter(isPersona).map(choiceOf)
  return [...modelChoices(), ...personas, ...workerChoices()]
}
