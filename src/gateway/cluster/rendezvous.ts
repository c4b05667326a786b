/**
 * Rendezvous hashing: every gateway ranks the nodes for a key alike without having heard of the others, and when a node comes
 * or goes only the keys that it has or had find another. A node with twice the slots gets twice the keys.
 */
import { slackAt } from '../routing/replicas.ts'

export interface Ranked {
  readonly id: string
  /** Its weight. */
  readonly slots: number
}

/** 32 bits of a text (FNV-1a, mixed at the end). */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return mixed(hash)
}

/** The first of the ranking; null of none. */
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

/** Larger is better. -slots / ln(u) of u evenly in (0, 1): the largest is a node's in proportion to its slots. */
function scoreOf(key: number, { id, slots }: Ranked): number {
  const u = (mixed(key ^ hashOfId(id)) + 0.5) / 2 ** 32
  return -Math.max(1, slots) / Math.log(u)
}

/** Ids of nodes are few and come again with every request. */
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

/** Every bit of the input changes about half of the output's: the last steps of MurmurHash3. */
function mixed(value: number): number {
  let hash = value
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}

export interface Target extends Ranked {
  /** Requests that are there, as far as one knows. */
  readonly inFlight: number
}

/** `kept`: where its session is; null without one, or where nobody knows. Null of no targets. */
export function chooseNode<T extends Target>(key: number, targets: readonly T[], kept: T | null): T | null {
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
