/** The dialect of RWKV-Infer: its chat, its models, and FastAPI's errors. */
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { adminRoutes } from './admin.ts'
import { inferChatRoutes } from './chat.ts'
import { renderDetail, statusOf } from './errors.ts'

export function inferDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'rwkv_infer',
    about: 'RWKV-Infer',
    routes: [...inferChatRoutes(limits, live), ...adminRoutes()],
    renderError: renderDetail,
    statusOf,
  }
}
