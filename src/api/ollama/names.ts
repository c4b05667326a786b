/** Names of models as Ollama's clients write them: with a tag, `:latest` where there is no other. */
import { SkeinError } from '../../errors.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'

const TAG = ':latest'

export function tagged(id: string): string {
  return id.includes(':') ? id : `${id}${TAG}`
}

export function untagged(name: string): string {
  return name.endsWith(TAG) ? name.slice(0, -TAG.length) : name
}

export function modelOf(models: ModelRegistry, name: string): ServedModel {
  try {
    return models.get(name)
  } catch (thrown) {
    const isUnknown = thrown instanceof SkeinError && thrown.code === 'not_found'
    if (!isUnknown || !name.endsWith(TAG)) throw thrown
    return models.get(untagged(name))
  }
}
