/** The error of the lightning routes: one string. Its refusal of a key has one wording, which clients look for. */
import type { SkeinError } from '../../errors.ts'

export function renderStringError(error: SkeinError): object {
  const isRefused = error.code === 'unauthorized'
  return { error: isRefused ? 'Unauthorized: invalid or missing password' : error.message }
}
