/**
 * Rendezvous hashing: every gateway ranks the nodes for a key in the same way without coordination, and when a node
 * comes or goes, only the keys that it gets or had move. A node with twice the slots gets twice the keys.
 */
import { slackAt } from '../routing/replicas.ts'

interface Ranked {
  readonly id: string
  /** The node's weight. */
  readonly slots: number
}

/** 32 bits of a text (FNV-1a, mixed at the end). */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return mixed(hash)
}

/** The highest-ranked node; null if there is none. */
export function firstFor<T extends Ranked>(key: number, nodes: Iterable<T>): T | null {
  let first: T | null = null
  let best = Number.NEGATIVE_INFINITY
  for (const node of nodes) {
    const score = scoreOf(key, node)
    if (score <= best) continue
    first = node
    best = score
  }
  return first
}

/** Larger is better: -slots / ln(u), with u uniform in (0, 1), ranks nodes first in proportion to their slots. */
function scoreOf(key: number, { id, slots }: Ranked): number {
  const u = (mixed(key ^ hashOfId(id)) + 0.5) / 2 ** 32
  return -Math.max(1, slots) / Math.log(u)
}

/** There are few node ids, and they recur with every request. */
const hashes = new Map<string, number>()
const MAX_IDS = 10_000

function hashOfId(id: string): number {
  const known = hashes.get(id)
  if (known !== undefined) return known
  if (hashes.size >= MAX_IDS) hashes.clear()
  const hash = hashOf(id)
  hashes.set(id, hash)
  return hash
}

/** The final mixing of MurmurHash3: every input bit changes about half of the output bits. */
function mixed(value: number): number {
  let hash = value
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}

export interface Target extends Ranked {
  /** Known requests on the node. */
  readonly inFlight: number
}

/** `kept`: the node that has the session; null without one, or if unknown. Returns null without targets. */
export function chooseNode<T extends Target>(key: number, targets: readonly T[], kept: T | null): T | null {
  if (targets.length < 2) return targets[0] ?? null
  // Plain loops, because every request runs this over perhaps a thousand nodes.
  let slots = 0
  for (const target of targets) slots += target.slots
  slots /= targets.length
  // Load, as if all nodes had the same number of slots.
  const load = ({ inFlight, slots: own }: T) => (inFlight * slots) / Math.max(1, own)
  let total = 0
  for (const target of targets) total += load(target)
  const slack = slackAt(total / targets.length)
  // Compared with the mean of the others (with two nodes, the other one), not with the least busy node: of a thousand
  // nodes one is always idle by chance, so all others would look too busy and every third turn would move its session
  // (scripts/simulate-cluster.js).
  const isNear = (target: T) => {
    const own = load(target)
    return own <= (total - own) / (targets.length - 1) + slack
  }
  if (kept !== null && targets.includes(kept) && isNear(kept)) return kept
  return firstFor(key, targets.filter(isNear))
}
