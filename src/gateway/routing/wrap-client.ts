/** A model with some of its client changed: how the gateway counts, traces and completes requests without a dialect knowing. */
import type { ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'

/** What is not changed is the model's own, as it is when it is asked for. */
export function withChangedClient(
  model: ServedModel,
  change: Partial<Pick<EngineClient, 'generate' | 'call'>>,
): ServedModel {
  const { client } = model
  const changed: EngineClient = {
    get info() {
      return client.info
    },
    get stats() {
      return client.stats
    },
    generate: change.generate ?? ((request, signal) => client.generate(request, signal)),
    call: change.call ?? ((method, params) => client.call(method, params)),
    close: () => client.close(),
  }
  return { ...model, client: changed }
}
