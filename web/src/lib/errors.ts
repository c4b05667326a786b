/** One shape for the errors of all routes. */

export class ApiError extends Error {
  /** 0: no reply. */
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

/** Any thrown value as a readable line. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown)
}
