/**
 * How a request names the session it continues: `session_id`, or `session` with its choices. The state of a session has
 * read all earlier turns, so what is sent is only what is new; it begins a new turn of the template.
 */

import type { GenerateRequest, SessionPosition, SessionUse } from '../../engine/messages.ts'
import { invalid, notImplemented } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { encodePrompt } from '../encode.ts'
import type { ServedModel } from '../models.ts'
import { present } from '../openai/sampling.ts'
import { BoundedInteger, Matching, Maybe } from '../schema.ts'

/** Any name without control characters. On disk it is UTF-8, where all halves of surrogate pairs would be one. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it looks for them
const ID = /^[^\u0000-\u001f\u007f\ud800-\udfff]{1,256}$/u
const ID_FORM = '1 to 256 characters, none of them a control character or half of a surrogate pair'
export const SessionId = Matching(ID.source, ID_FORM)

/** For a name that comes in the path, where no schema sees it, and is to be made. */
export function checkNewId(id: string): void {
  if (!ID.test(id)) throw invalid('id', `expected ${ID_FORM}`)
}

export const TurnNumber = BoundedInteger(0, 2 ** 31 - 1)

export function sessionFields() {
  return {
    session_id: Maybe(SessionId),
    session: Maybe(
      Type.Object(
        {
          id: SessionId,
          from: Maybe(TurnNumber),
          if_missing: Maybe(choice('create', 'error')),
          if_busy: Maybe(choice('wait', 'conflict')),
          on_cancel: Maybe(choice('drop', 'keep')),
          if_version: Maybe(TurnNumber),
          ttl_seconds: Maybe(Type.Number({ exclusiveMinimum: 0, maximum: 1e9 })),
        },
        { additionalProperties: false },
      ),
    ),
  }
}

function choice<const T extends string>(...values: T[]) {
  return Type.Unsafe<T>({ type: 'string', enum: [...values, null] })
}

type SessionFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof sessionFields>>>>

/** Null: the request has nothing to do with a session. */
export function sessionUse({ session_id, session }: SessionFields): SessionUse | null {
  if (present(session_id) && present(session) && session.id !== session_id)
    throw invalid('session_id', 'it differs from session.id; send one of the two')
  const id = session?.id ?? session_id
  if (!present(id)) return null
  return {
    id,
    ifMissing: session?.if_missing ?? 'create',
    ifBusy: session?.if_busy ?? 'wait',
    onCancel: session?.on_cancel ?? 'drop',
    from: session?.from ?? undefined,
    ifVersion: session?.if_version ?? undefined,
    ttlSeconds: session?.ttl_seconds ?? undefined,
  }
}

/** For routes that continue no session: silence would start every turn from nothing. */
export function refuseSession(body: object, instead: string): void {
  for (const field of ['session_id', 'session'] as const) {
    if (present((body as Record<string, unknown>)[field]))
      throw notImplemented(field, `this route continues no session; ${instead}`)
  }
}

/** A session has one answer per turn, and is kept. */
export function checkSession(body: SessionFields & { n?: number | null; cache?: string | null }): void {
  if (sessionUse(body) === null) return
  if ((body.n ?? 1) > 1) throw invalid('n', 'a session has one answer per turn; expected 1')
  if (body.cache === 'no-store') throw invalid('cache', 'a session is stored; leave one of them out')
}

/**
 * The text of a turn for the next of a session and for its first, which nothing precedes. Which one it is, is known
 * when the request has its place in the session: others may come before it.
 */
export async function encodeTurn(
  model: ServedModel,
  texts: string | { readonly next: string; readonly first: string },
  param: string,
  signal: AbortSignal,
  between = '\n\n',
): Promise<Pick<GenerateRequest, 'prompt' | 'promptAtBeginning'>> {
  const text = typeof texts === 'string' ? texts : texts.next
  const first = typeof texts === 'string' ? texts : texts.first
  // Unless the text brings its own.
  const next = text.startsWith(between) ? text : `${between}${text}`
  const prompt = await encodePrompt(model, next, param, signal)
  if (next === first) return { prompt }
  return { prompt, promptAtBeginning: await encodePrompt(model, first, param, signal) }
}

export function wirePosition({ id, turn, version, continued }: SessionPosition): object {
  return { id, turn, version, ...(continued === undefined ? {} : { continued }) }
}
