/**
 * A multipart form to its fields and its one file, by Node's own reader. Runs on the event loop for small bodies, else as a
 * task of a thread.
 */
import type { FormBody } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'
import { task } from '../../threads/task.ts'

interface FormBytes {
  readonly bytes: Uint8Array<ArrayBuffer>
  /** With the boundary of its parts. */
  readonly type: string
}

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
    throw new SkeinError('invalid_request', 'the body is no multipart form that can be read')
  }
}
