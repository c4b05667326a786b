/** Which model a request of rwkv_lightning is for. Its documents never name one; its servers call theirs `rwkv7`. */
import type { ModelRegistry, ServedModel } from '../models.ts'

interface Named {
  readonly model?: string | null | undefined
}

/** Clients of these routes get back the name they sent, or the one they always did. */
export function modelNameOf({ model }: Named): string {
  return model || 'rwkv7'
}

/** The only model there is has any name; of several, one called `rwkv7` is for those who name none. */
export function modelOf({ models, body }: { models: ModelRegistry; body: Named }): ServedModel {
  return models.get(modelNameOf(body))
}
