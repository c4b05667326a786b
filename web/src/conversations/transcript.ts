/** A session's text as the server returns it (docs/api.md). */
import { call } from '../lib/api.ts'
import type { Target } from '../lib/chat.ts'
import type { Transcript } from './read-session.ts'

export function readTranscript(
  { base, model }: Target,
  id: string,
  choices: { readonly turn?: number; readonly limit?: number },
  signal?: AbortSignal,
): Promise<Transcript> {
  const query = new URLSearchParams({ model })
  for (const [name, value] of Object.entries(choices)) query.set(name, String(value))
  const path = `${base}/v1/sessions/${encodeURIComponent(id)}/transcript?${query}`
  return call(path, signal === undefined ? {} : { signal })
}
