/**
 * Models asked for together with a tuned start state: `model@state`, or `model state` as RWKV-Infer has it. What comes
 * back is the model with every request through it begun from that state, so no dialect knows of start states.
 */
import type { ServedModel } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import { SkeinError } from '../errors.ts'

/** A name without a known model's is taken apart at its last `@` or space; a model's own name may have either. */
export function splitStartState(
  name: string | null | undefined,
  isModel: (id: string) => boolean,
): { readonly model: string | null | undefined; readonly startState: string | null } {
  const parts = name && !isModel(name) ? /^(.*)[@ ]([^@ ]+)$/.exec(name) : null
  return parts ? { model: parts[1], startState: parts[2]! } : { model: name, startState: null }
}

export function withStartState(model: ServedModel, startState: string): ServedModel {
  const { client, id } = model
  if (!client.info.startStates?.includes(startState)) {
    throw new SkeinError(
      'not_found',
      'model: it has no start state of that name; GET /v1/models lists the names',
      { param: 'model' },
    )
  }
  const begun: EngineClient = {
    info: client.info,
    get stats() {
      return client.stats
    },
    generate: (request, signal) => client.generate({ startState, ...request }, signal),
    call: (method, params) => client.call(method, params),
    close: () => client.close(),
  }
  return { ...model, id: `${id}@${startState}`, client: begun }
}
