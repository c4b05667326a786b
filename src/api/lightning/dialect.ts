/** The dialect of rwkv_lightning and its CUDA port: its routes and its errors. */
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { Dialect } from '../route.ts'
import { chatBatchRoute } from './chat-batch.ts'
import { contentsRoutes } from './contents.ts'
import { renderStringError } from './errors.ts'
import { fimRoute } from './fim.ts'
import { openAiRoutes } from './openai.ts'
import { serverRoutes } from './server.ts'
import { stateRoutes } from './state.ts'

export function lightningDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'rwkv_lightning',
    about: 'rwkv_lightning',
    routes: [
      ...contentsRoutes(limits, live),
      chatBatchRoute(limits, live),
      fimRoute(limits, live),
      ...openAiRoutes(limits, live),
      ...stateRoutes(limits, live),
      ...serverRoutes(limits, live),
    ],
    renderError: renderStringError,
  }
}
