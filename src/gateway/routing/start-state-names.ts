/**
 * Models asked for together with a tuned start state: `model@state`, or `model state` as RWKV-Infer has it. What comes
 * back is the model with every request through it begun from that state, so no dialect knows of start states.
 */
import type { ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import { withChangedClient } from './changed-client.ts'

export interface StartStateName {
  readonly model: string | null | undefined
  readonly startState: string | null
}

/** What a name may mean that is no model's: it is taken apart behind a model's name in it, the longest first; all names may have spaces. */
export function startStateNames(
  name: string | null | undefined,
  isModel: (id: string) => boolean,
): readonly [StartStateName, ...StartStateName[]] {
  const whole = { model: name, startState: null }
  if (!name || isModel(name)) return [whole]
  const names: StartStateName[] = []
  for (let at = name.length - 2; at >= 0; at--) {
    const isSeparator = name[at] === '@' || name[at] === ' '
    if (!isSeparator || !isModel(name.slice(0, at))) continue
    names.push({ model: name.slice(0, at), startState: name.slice(at + 1) })
  }
  const [first = whole, ...others] = names
  return [first, ...others]
}

export function withStartState(model: ServedModel, startState: string): ServedModel {
  const { client, id } = model
  if (!client.info.startStates?.includes(startState)) {
    throw new SkeinError('not_found', 'model: it has no start state of that name; GET /v1/models lists the names', {
      param: 'model',
    })
  }
  const generate: EngineClient['generate'] = (request, signal) => client.generate({ ...request, startState }, signal)
  return { ...withChangedClient(model, { generate }), id: `${id}@${startState}` }
}
