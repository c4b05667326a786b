/**
 * Requests that may be asked again though they were answered, since nobody kept the answer: the turn of the later one takes the
 * place of the earlier one's, which is the last of its session still, and the conversation has it once.
 */
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { withChangedClient } from './changed-client.ts'
import type { Observer } from './observed.ts'

/** `origin` names the request, however often it is asked. */
export function modelsAsking(models: ModelRegistry, origin: string): ModelRegistry {
  const asking = (model: ServedModel): ServedModel => {
    const generate: EngineClient['generate'] = (request, signal) => {
      const { session } = request
      const own = session === undefined ? request : { ...request, session: { ...session, origin } }
      return model.client.generate(own, signal)
    }
    return withChangedClient(model, { generate })
  }
  return { list: () => models.list(), get: (name) => asking(models.get(name)) }
}

const CONTINUED_HEADER = 'x-session-continued'

interface HeadedReply {
  readonly sent: boolean
  header(name: string, value: string): unknown
}

/** The header that says which turn of its session an answer continues: known before its first text, whatever the dialect. */
export function tellingContinued(reply: HeadedReply): Observer {
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
