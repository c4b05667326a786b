/**
 * Models asked for together with a tuned start state: `model@state`, or `model state` as RWKV-Infer has it. What comes
 * back is the model with every request through it begun from that state, so no dialect knows of start states.
 */
import type { ServedModel } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import { SkeinError } from '../errors.ts'
import { withChangedClient } from './changed-client.ts'

/** A name that is no model's is taken apart behind the longest model's name in it; both names may have spaces. */
export function splitStartState(
  name: string | null | undefined,
  isModel: (id: string) => boolean,
): { readonly model: string | null | undefined; readonly startState: string | null } {
  if (!name || isModel(name)) return { model: name, startState: null }
  for (let at = name.length - 2; at >= 0; at--) {
    const isSeparator = name[at] === '@' || name[at] === ' '
    if (!isSeparator || !isModel(name.slice(0, at))) continue
    return { model: name.slice(0, at), startState: name.slice(at + 1) }
  }
  return { model: name, startState: null }
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
  const generate: EngineClient['generate'] = (request, signal) =>
    client.generate({ startState, ...request }, signal)
  return { ...withChangedClient(model, { generate }), id: `${id}@${startState}` }
}
