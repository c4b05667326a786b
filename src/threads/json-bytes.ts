/**
 * Writes a large value as JSON in several turns of the event loop. The bytes are those of JSON.stringify, in chunks: joining
 * megabytes, or encoding them where they are sent, would take one long turn.
 */
import { turns } from './turns.ts'

/** List items written at once: with 20 alternatives each, some thousand log-probabilities. */
const PIECE = 32
const CHUNK_BYTES = 64 * 1024
/** No reply has long lists at a greater depth. */
const DEPTH = 6

export async function jsonBytes(value: unknown): Promise<Buffer[]> {
  const chunks: Buffer[] = []
  let text = ''
  for (const write of writes(value, DEPTH)) {
    await turns.do(() => {
      text += write()
      if (text.length < CHUNK_BYTES) return
      chunks.push(Buffer.from(text))
      text = ''
    })
  }
  return [...chunks, Buffer.from(text)]
}

function* writes(value: unknown, depth: number): Generator<() => string> {
  if (typeof value !== 'object' || value === null || depth === 0) {
    yield () => JSON.stringify(value)
  } else if (Array.isArray(value) && value.length > PIECE) {
    for (let at = 0; at < value.length; at += PIECE) {
      const before = at === 0 ? '[' : ','
      yield () => before + JSON.stringify(value.slice(at, at + PIECE)).slice(1, -1)
    }
    yield () => ']'
  } else {
    const isList = Array.isArray(value)
    const entries = Object.entries(value).filter(([, one]) => one !== undefined)
    yield () => (isList ? '[' : '{')
    for (const [i, [name, one]] of entries.entries()) {
      const comma = i === 0 ? '' : ','
      yield () => (isList ? comma : `${comma}${JSON.stringify(name)}:`)
      yield* writes(one, depth - 1)
    }
    yield () => (isList ? ']' : '}')
  }
}
