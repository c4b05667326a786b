/** Which model a state belongs to. */
import type { ModelInfo } from '../../model/runner.ts'
import type { ModelIdentity } from '../../state/snapshot.ts'

/** The same checkpoint at another precision computes other states. */
export function identityOf(info: ModelInfo, vocabulary: string): ModelIdentity {
  const { architecture, fingerprint, weightType, stateShape } = info
  return { architecture, ...stateShape, vocabulary, weights: `${fingerprint} as ${weightType}` }
}
