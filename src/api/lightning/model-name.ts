/** Which model a request of rwkv_lightning is for. Its documents never name one; its servers call theirs `rwkv7`. */

import type { SkeinError } from '../../errors.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'

interface Named {
  readonly model?: string | null | undefined
}

/** Clients of these routes get back the name they sent, or the one they always did. */
export function modelNameOf({ model }: Named): string {
  return model || 'rwkv7'
}

/** Without a name: the only model; of several, the one called `rwkv7`. */
export function modelOf({ models, body }: { models: ModelRegistry; body: Named }): ServedModel {
  return models.get(modelNameOf(body))
}

/** The error of the lightning routes: one string. Its refusal of a key has one wording, which clients look for. */
export function renderStringError(error: SkeinError): object {
  const isRefused = error.code === 'unauthorized'
  return { error: isRefused ? 'Unauthorized: invalid or missing password' : error.message }
}
