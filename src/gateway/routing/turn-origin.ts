/**
 * Requests that may be repeated although they were answered, because the answer was lost. If the earlier turn is still
 * the last of its session, the later one replaces it, so that the conversation has it once.
 */
import type { ModelRegistry } from '../../api/models.ts'
import type { Observer } from './observed.ts'
import { changedModels, wrapClient } from './wrap-client.ts'

/** `origin` identifies the request across its repetitions. */
export function withTurnOrigin(models: ModelRegistry, origin: string): ModelRegistry {
  return changedModels(models, (model) =>
    wrapClient(model, {
      generate: (request, signal) => {
        const { session } = request
        const own = session === undefined ? request : { ...request, session: { ...session, origin } }
        return model.client.generate(own, signal)
      },
    }),
  )
}

const CONTINUED_HEADER = 'x-session-continued'

interface HeadedReply {
  readonly sent: boolean
  header(name: string, value: string): unknown
}

/** Sets a header with the turn that an answer continues. It is known before the first text, in every dialect. */
export function continuedTurnHeader(reply: HeadedReply): Observer {
  return {
    begin: () => ({
      event(event) {
        if (event.type !== 'prompt' || event.session === undefined || reply.sent) return
        reply.header(CONTINUED_HEADER, String(event.session.turn))
      },
      end() {},
    }),
  }
}
