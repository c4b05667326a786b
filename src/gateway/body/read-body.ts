/** Parses the bytes of a body: small ones on the event loop, others in a thread. */
import { parse } from 'secure-json-parse'
import type { FormBody } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'
import { isObject } from '../../files/bytes.ts'
import { task } from '../../threads/task.ts'

export interface JsonText {
  readonly bytes: Uint8Array
  /** Fields that the route's schemas name; null: every field may matter. */
  readonly fields: ReadonlySet<string> | null
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false })

export function readJson({ bytes, fields }: JsonText): unknown {
  const value = parsed(decoded(bytes))
  return isObject(value) && fields !== null ? withoutUnknown(value, fields) : value
}

export const readJsonTask = task(readJson)

function decoded(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes)
  } catch {
    throw new SkeinError('invalid_request', 'the body is not valid UTF-8')
  }
}

function parsed(text: string): unknown {
  try {
    return parse(text, { protoAction: 'error', constructorAction: 'error' })
  } catch {
    throw new SkeinError('invalid_request', 'the body is not valid JSON; expected one object')
  }
}

/** Stands for a large value of an unknown field: only its presence matters. */
const LEFT_OUT = '…'

/** Replaces large values of fields that no schema names, so that they take no memory while the answer is generated. */
function withoutUnknown(body: object, fields: ReadonlySet<string>): object {
  const kept = Object.entries(body).map(([name, value]) =>
    fields.has(name) || isSmall(value) ? [name, value] : [name, LEFT_OUT],
  )
  return Object.fromEntries(kept)
}

function isSmall(value: unknown): boolean {
  if (typeof value === 'string') return value.length <= 64
  if (typeof value !== 'object' || value === null) return true
  const values = Object.values(value)
  return values.length <= 1 && values.every((one) => typeof one !== 'object' && isSmall(one))
}

interface FormBytes {
  readonly bytes: Uint8Array<ArrayBuffer>
  /** The content type with its boundary. */
  readonly type: string
}

/** Reads the fields and the one file of a multipart form with Node's own parser. */
export async function readForm({ bytes, type }: FormBytes): Promise<FormBody> {
  const parts = await partsOf(bytes, type)
  const fields: Record<string, string> = {}
  let file: FormBody['file'] = null
  for (const [name, value] of parts) {
    if (typeof value === 'string') fields[name] = value
    else if (name === 'file') file = { name: value.name, bytes: new Uint8Array(await value.arrayBuffer()) }
  }
  return { fields, file }
}

export const readFormTask = task(readForm)

async function partsOf(bytes: Uint8Array<ArrayBuffer>, type: string): Promise<FormData> {
  try {
    return await new Response(bytes, { headers: { 'content-type': type } }).formData()
  } catch {
    throw new SkeinError('invalid_request', 'the body is not a readable multipart form')
  }
}
