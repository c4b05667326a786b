/** The dialect of RWKV-Infer: its chat, its models, and FastAPI's errors. */

import type { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { adminRoutes } from './admin.ts'
import { inferChatRoutes } from './chat.ts'

export function inferDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'rwkv_infer',
    about: 'RWKV-Infer',
    routes: [...inferChatRoutes(limits, live), ...adminRoutes()],
    renderError: renderDetail,
    statusOf,
  }
}

/** The error of RWKV-Infer's routes: FastAPI's. What a file made fail is its 500, whatever was wrong with the file. */
export function renderDetail(error: SkeinError): object {
  return { detail: error.message }
}

export function statusOf({ code }: SkeinError): number | undefined {
  const isFile = code === 'unsupported_weights' || code === 'corrupt_weights'
  return isFile || code === 'state_incompatible' ? 500 : undefined
}
