/** The dialect of rwkv_lightning and its CUDA port: its routes and its errors. */

import { invalid } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import { encodePrompts } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { fimPrompt } from '../openai/fim.ts'
import type { Dialect, Route } from '../route.ts'
import { refuseSession } from '../sessions/use.ts'
import { batchReply } from './batch.ts'
import { answering, Contents, lightningFields, modelOf, renderStringError, SHORT, settingsOf } from './body.ts'
import { chatBatchRoute } from './chat-batch.ts'
import { contentsRoutes, labelOf, planFor, STATE_ROUTE } from './contents.ts'
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

/** POST /FIM/v1/batch-FIM: texts to fill in, in pairs of what stands before and after; one row a pair. */
function fimRoute(limits: RequestLimits, live: LiveCalls): Route {
  const path = '/FIM/v1/batch-FIM'
  const summary = 'Fill in between each prefix and its suffix'
  const body = Type.Object({ ...lightningFields(limits), prefix: Contents(limits), suffix: Contents(limits) })
  return answering(path, summary, body, async (call) => {
    const { prefix, suffix } = call.body
    if (prefix.length === 0) throw invalid('prefix', 'Empty prompts list')
    if (prefix.length !== suffix.length)
      throw invalid('suffix', `${suffix.length} for ${prefix.length} of prefix; expected as many`)
    const model = modelOf(call)
    refuseSession(call.body, STATE_ROUTE)
    const settings = settingsOf(call.body, SHORT, model, call.limits)
    const texts = prefix.map((before, i) => fimPrompt(before, suffix[i]!))
    const all = await encodePrompts(model, texts, (i) => `prefix[${i}]`, call.signal)
    const prompts = all.map((tokens) => ({ tokens }))
    const plan = planFor(call, { path, model, settings, family: SHORT, prompts })
    // In the original a single pair is a code path of its own, with a name of its own.
    const label =
      prefix.length === 1 ? labelOf(call.body, 'rwkv7-batch-v3') : labelOf(call.body, 'rwkv7-batch', 'FIM.completion')
    return await batchReply(plan, live, label, call.body.stream === true)
  })
}
