/** Replies as the reference page shows them: values that differ from run to run are replaced by fixed ones. */

/** Numbers and texts under these names, and their replacements. */
const MOMENTS =
  /^(created|created_at|updated|updated_at|last_used_at|modified_at|started_at|ended_at|expires_at|grace_until|since|timestamp|at)$/
const SPANS = /(_duration|_ms|_seconds|_per_second|_us)$/
const MOMENT = 1795400000
const SPAN = 12

export function steady(value: unknown, name = ''): unknown {
  if (Array.isArray(value)) return value.map((one) => steady(one, name))
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).map(([key, one]) => [key, steady(one, key)])
    return Object.fromEntries(entries)
  }
  if (typeof value === 'number' && MOMENTS.test(name)) return MOMENT
  if (typeof value === 'number' && SPANS.test(name)) return SPAN
  return typeof value === 'string' ? steadyText(value) : value
}

export function steadyText(text: string): string {
  return text
    .replace(/(?:\/[\w.-]+)+\/demo\.pth/g, '/srv/models/demo.pth')
    .replace(/\b(?:[0-9a-f]{24,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b/g, 'ID')
    .replace(/([-_])[0-9a-f]{24,}/g, '$1ID')
    .replace(/\bwkr-[0-9a-f]+/g, 'wkr-ID')
    .replace(/\bfp_[0-9a-f]+/g, 'fp_ID')
    .replace(/sk-[\w-]{20,}/g, 'sk-SECRET')
    .replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, '2026-11-23T00:00:00Z')
    .replace(/"(created|created_at)":\d+/g, `"$1":${MOMENT}`)
    .replace(/"(\w+_duration|\w+_ms|\w+_per_second)":[\d.e+-]+/g, `"$1":${SPAN}`)
}

/** The names and types in a reply, without its values; for a stream the text, however it was cut into events. */
export function formOf(value: unknown): unknown {
  return typeof value === 'string' ? wordsOf(value) : typesOf(value)
}

function wordsOf(stream: string): string {
  const pieces = [...stream.matchAll(/"(?:content|text)":("(?:[^"\\]|\\.)*")/g)]
  return pieces.map(([, piece]) => JSON.parse(piece!)).join('')
}

function typesOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.slice(0, 1).map(typesOf)
  if (typeof value !== 'object' || value === null) return value === null ? 'null' : typeof value
  const entries = Object.entries(value).map(([key, one]) => [key, typesOf(one)])
  return Object.fromEntries(entries.sort(([a], [b]) => String(a).localeCompare(String(b))))
}
