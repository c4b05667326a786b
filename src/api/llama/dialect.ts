/** llama.cpp's own routes; its OpenAI routes are those of the OpenAI dialect, and /infill is in fim/. */
import type { ErrorCode, SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { Dialect } from '../route.ts'
import { PLAIN_SSE } from '../stream-form.ts'
import { completionRoute } from './completion.ts'
import { serverRoutes } from './server.ts'

const TYPES: Partial<Record<ErrorCode, string>> = {
  unauthorized: 'authentication_error',
  forbidden: 'permission_error',
  not_found: 'not_found_error',
  model_not_loaded: 'unavailable_error',
}

export function llamaDialect(limits: RequestLimits): Dialect {
  return {
    name: 'llama.cpp',
    about: 'The server of llama.cpp',
    stream: PLAIN_SSE,
    keyHeaders: ['x-api-key'],
    routes: [completionRoute(limits), ...serverRoutes(limits)],
    renderError: renderLlamaError,
  }
}

function renderLlamaError({ code, status, message, param }: SkeinError): object {
  const type = TYPES[code] ?? (status >= 500 ? 'server_error' : 'invalid_request_error')
  return { error: { code: status, message, type, param: param ?? null } }
}
