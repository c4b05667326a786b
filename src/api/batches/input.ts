/** The lines of a batch: where each is in its file, and whether it is a request that can be run. Knows no model. */
import { parse } from 'secure-json-parse'
import type { FileReader, LineError } from '../../batches/store.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { isObject } from '../../files/bytes.ts'
import { turns } from '../../threads/turns.ts'

/** Bytes [start, end) of the file. */
export interface LinePlace {
  readonly start: number
  readonly end: number
}

interface RowRequest {
  readonly customId: string
  readonly body: object
}

export interface LineBounds {
  readonly lines: number
  readonly lineBytes: number
}

const CHUNK = 1 << 20
const NEWLINE = 0x0a
/** Errors that are told; one is enough to fail the batch. */
const MOST_ERRORS = 100

/** Empty lines are none. */
export async function findLines(file: FileReader): Promise<LinePlace[]> {
  const places: LinePlace[] = []
  const chunk = new Uint8Array(CHUNK)
  let [start, at] = [0, 0]
  for (;;) {
    const count = await file.read(chunk, at)
    if (count === 0) break
    const bytes = chunk.subarray(0, count)
    for (let i = bytes.indexOf(NEWLINE); i !== -1; i = bytes.indexOf(NEWLINE, i + 1)) {
      if (at + i > start) places.push({ start, end: at + i })
      start = at + i + 1
    }
    at += count
  }
  if (at > start) places.push({ start, end: at })
  return places
}

/** Throws invalid_request, by the field at fault. */
export async function readLine(file: FileReader, { start, end }: LinePlace, endpoint: string): Promise<RowRequest> {
  const bytes = new Uint8Array(end - start)
  await file.read(bytes, start)
  return turns.do(() => requestOf(bytes, endpoint))
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

function requestOf(bytes: Uint8Array, endpoint: string): RowRequest {
  const row = parsed(bytes)
  const { custom_id, method, url, body } = row
  if (typeof custom_id !== 'string' || custom_id === '' || custom_id.length > 512)
    throw invalid('custom_id', 'expected a text of at most 512 characters')
  if (method !== 'POST') throw invalid('method', 'expected "POST"')
  if (url !== endpoint) throw invalid('url', `expected ${endpoint}, the endpoint of the batch`)
  if (!isObject(body)) throw invalid('body', 'expected the body of the request, an object')
  if (body.stream === true) throw invalid('body.stream', 'answers of a batch are not streamed')
  return { customId: custom_id, body }
}

function parsed(bytes: Uint8Array): Readonly<Record<string, unknown>> {
  try {
    const text = utf8.decode(bytes)
    const value: unknown = parse(text, { protoAction: 'error', constructorAction: 'error' })
    if (isObject(value)) return value
  } catch {}
  throw new SkeinError('invalid_request', 'the line is no JSON object')
}

/** The errors of a file; it runs only when there are none. */
export async function checkLines(
  file: FileReader,
  places: readonly LinePlace[],
  endpoint: string,
  { lines, lineBytes }: LineBounds,
): Promise<LineError[]> {
  if (places.length === 0) return [errorOf('empty_file', 'the file has no requests', null)]
  if (places.length > lines) return [errorOf('too_many_requests', `the file has more than ${lines} requests`, null)]
  const errors: LineError[] = []
  const seen = new Set<string>()
  for (const [i, place] of places.entries()) {
    if (errors.length === MOST_ERRORS) break
    const line = i + 1
    if (place.end - place.start > lineBytes) {
      errors.push(errorOf('line_too_large', `expected at most ${lineBytes} bytes`, line))
      continue
    }
    try {
      const { customId } = await readLine(file, place, endpoint)
      if (seen.has(customId))
        errors.push(errorOf('duplicate_custom_id', `${customId} is there twice`, line, 'custom_id'))
      seen.add(customId)
    } catch (thrown) {
      const { message, param } = SkeinError.from(thrown)
      errors.push(errorOf('invalid_line', message, line, param))
    }
  }
  return errors
}

function errorOf(code: string, message: string, line: number | null, param?: string): LineError {
  return { code, message, line, param: param ?? null }
}
