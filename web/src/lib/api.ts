/** Calls of this server with the visitor's key, and one shape for the errors of all its dialects. */
import { signal } from '@preact/signals'

const STORED = 'skein.key'

/** Kept until the tab is closed. */
export const key = signal(sessionStorage.getItem(STORED) ?? '')
/** The server wants a key, or another one. */
export const isKeyWanted = signal(false)

export function takeKey(value: string): void {
  sessionStorage.setItem(STORED, value)
  key.value = value
  isKeyWanted.value = false
}

export function forgetKey(): void {
  sessionStorage.removeItem(STORED)
  key.value = ''
}

export class ApiError extends Error {
  /** 0: no answer at all. */
  readonly status: number
  readonly code: string
  /** Which field of the body was wrong. */
  readonly field: string | null

  constructor(status: number, message: string, code: string, field: string | null) {
    super(message)
    this.status = status
    this.code = code
    this.field = field
  }
}

export interface CallOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  /** Sent as JSON; bytes as they are. */
  readonly body?: object | undefined
  readonly signal?: AbortSignal
}

/** The reply, of a status below 400. */
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
  // The server's own types; `contract.ts` and docs/api.md say which path answers what.
  return (await reply.json()) as T
}

/** OpenAI's `{error: {message}}`, rwkv_lightning's `{error: "…"}`, the management API's `{detail}`, or no JSON at all. */
export function errorOf(status: number, text: string): ApiError {
  const fallback = text.trim().slice(0, 300) || `HTTP ${status}`
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    return new ApiError(status, fallback, '', null)
  }
  const { error, detail, code, field } = record(body)
  if (typeof error === 'string') return new ApiError(status, error, text_(code), null)
  const inner = record(error)
  const message = text_(inner.message) || text_(detail) || fallback
  const where = text_(inner.param) || text_(field)
  return new ApiError(status, message, text_(inner.code) || text_(code), where || null)
}

function record(value: unknown): Record<string, unknown> {
  // Any object may be read by key.
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}

function text_(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** Any thrown value as a line for people. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown)
}
