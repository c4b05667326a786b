/**
 * Which node gets a request: the one that has its state, or else the one that its beginning is hashed to, as long as that
 * node has little more to do than the others. Pure: the same nodes and figures give the same node everywhere.
 */
import { slackAt } from '../routing/replicas.ts'
import { firstFor, type Ranked } from './rendezvous.ts'

export interface Target extends Ranked {
  /** Requests that are there, as far as one knows. */
  readonly inFlight: number
}

/** `kept`: where its session is; null without one, or where nobody knows. Null of no targets. */
export function chooseNode<T extends Target>(
  key: number,
  targets: readonly T[],
  kept: T | null,
): T | null {
  if (targets.length < 2) return targets[0] ?? null
  // Loops: a gateway does this for every request, over a thousand nodes if there are as many.
  let slots = 0
  for (const target of targets) slots += target.slots
  slots /= targets.length
  // What a node has to do, as if all had as many slots.
  const load = ({ inFlight, slots: own }: T) => (inFlight * slots) / Math.max(1, own)
  let total = 0
  for (const target of targets) total += load(target)
  const slack = slackAt(total / targets.length)
  // Against the mean of the others, which for two is the other one. Of a thousand the least busy one is idle by chance, and
  // all would be too busy beside it: every third turn would move its session (scripts/simulate-cluster.js).
  const isNear = (target: T) => {
    const own = load(target)
    return own <= (total - own) / (targets.length - 1) + slack
  }
  if (kept !== null && targets.includes(kept) && isNear(kept)) return kept
  return firstFor(key, targets.filter(isNear))
}
