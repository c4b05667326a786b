/**
 * Resolves names of a model with a tuned start state: `model@state`, or `model state` as in RWKV-Infer. The result is
 * the model with every request started from that state, so that dialects need not know start states.
 */
import type { ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import { wrapClient } from './wrap-client.ts'

export interface StartStateName {
  readonly model: string | null | undefined
  readonly startState: string | null
}

/** Possible splits of a name into a model's and a state's, the longest model name first. Both may contain spaces. */
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
    throw new SkeinError('not_found', 'model: there is no start state of that name; GET /v1/models lists the names', {
      param: 'model',
    })
  }
  const generate: EngineClient['generate'] = (request, signal) => client.generate({ ...request, startState }, signal)
  return { ...wrapClient(model, { generate }), id: `${id}@${startState}` }
}
