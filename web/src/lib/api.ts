/** Calls of this server with the visitor's key. */
import { batch, signal } from '@preact/signals'
import { ApiError, errorOf } from './errors.ts'

const STORED = 'skein.key'

/** Stored until the tab is closed. */
export const key = signal(sessionStorage.getItem(STORED) ?? '')
/** The server asks for a key, or for another one. */
export const isKeyWanted = signal(false)

/** Counts keys given or forgotten. Giving the same key again counts as a new try. */
export const keyChanges = signal(0)

export function takeKey(value: string): void {
  sessionStorage.setItem(STORED, value)
  batch(() => {
    key.value = value
    keyChanges.value++
    isKeyWanted.value = false
  })
}

export function forgetKey(): void {
  sessionStorage.removeItem(STORED)
  batch(() => {
    key.value = ''
    keyChanges.value++
  })
}

interface CallOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  /** Sent as JSON; bytes are sent unchanged. */
  readonly body?: object | undefined
  readonly signal?: AbortSignal
}

/** Returns the reply. Throws for a status of 400 or more. */
export async function request(path: string, options: CallOptions = {}): Promise<Response> {
  const { body, signal: abort } = options
  const isBytes = body instanceof Blob
  const headers: Record<string, string> = {}
  if (key.value !== '') headers.authorization = `Bearer ${key.value}`
  if (body !== undefined) {
    headers['content-type'] = isBytes ? 'application/octet-stream' : 'application/json'
  }
  const init: RequestInit = {
    method: options.method ?? (body === undefined ? 'GET' : 'POST'),
    headers,
    ...(body === undefined ? {} : { body: isBytes ? body : JSON.stringify(body) }),
    ...(abort === undefined ? {} : { signal: abort }),
  }
  const reply = await fetch(path, init).catch((thrown: unknown) => {
    if (abort?.aborted) throw thrown
    throw new ApiError(0, 'the server does not answer', 'unreachable', null)
  })
  if (reply.ok) return reply
  if (reply.status === 401) isKeyWanted.value = true
  throw errorOf(reply.status, await reply.text())
}

export async function call<T>(path: string, options: CallOptions = {}): Promise<T> {
  const reply = await request(path, options)
  // `contract.ts` and docs/api.md say which path answers with which type.
  return (await reply.json()) as T
}
