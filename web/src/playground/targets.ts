/** Whom a conversation is with: a model, by whichever of its workers the server chooses, or one worker by itself. */
import type { Target } from '../lib/chat.ts'
import { models, workers } from '../lib/live.ts'

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

export function modelChoices(): Choice[] {
  return (models.value ?? []).map(({ id, state }) => ({
    id,
    model: id,
    worker: null,
    isReady: state === 'ready',
  }))
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

export function allChoices(): Choice[] {
  return [...modelChoices(), ...workerChoices()]
}
