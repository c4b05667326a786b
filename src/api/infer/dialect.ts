/** The dialect of RWKV-Infer: its chat, its models, and FastAPI's errors. */
import type { RequestLimits } from '../limits.ts'
import type { Dialect } from '../route.ts'
import { adminRoutes } from './admin.ts'
import { inferChatRoutes } from './chat.ts'
import { renderDetail, statusOf } from './errors.ts'

export function inferDialect(limits: RequestLimits): Dialect {
  return {
    name: 'rwkv_infer',
    routes: [...inferChatRoutes(limits), ...adminRoutes()],
    renderError: renderDetail,
    statusOf,
  }
}
