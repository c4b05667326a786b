/** Wraps a model's client, so that the gateway can count, trace and complete requests without the dialects knowing. */
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'

/** The same models, each changed when it is asked for. */
export function changedModels(models: ModelRegistry, change: (model: ServedModel) => ServedModel): ModelRegistry {
  return { list: () => models.list(), get: (name) => change(models.get(name)) }
}

/** Everything that is not replaced stays the model's own, read at each access. */
export function wrapClient(model: ServedModel, change: Partial<Pick<EngineClient, 'generate' | 'call'>>): ServedModel {
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
