/** The name of a model among stored states. Two models must never share one: a state of the wrong model looks right. */
import { createHash } from 'node:crypto'
import type { ModelIdentity } from './snapshot.ts'

export function modelKeyOf(identity: ModelIdentity): string {
  const { architecture, layers, channels, heads, headSize, vocabulary, weights } = identity
  const parts = [architecture, layers, channels, heads, headSize, vocabulary, weights]
  const hash = createHash('sha256').update(JSON.stringify(parts)).digest('hex')
  return `${architecture}-${hash.slice(0, 16)}`
}
