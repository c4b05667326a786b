/** Ollama's errors: one string. */
import type { SkeinError } from '../../errors.ts'

export function renderOllamaError(error: SkeinError): object {
  return { error: error.message }
}
