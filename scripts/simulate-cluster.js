/**
 * A cluster of a thousand nodes in virtual time, over the gateway's own routing (dist/gateway/cluster): minutes of a day from
 * night to peak, and a rack that fails at the peak. Says how often sessions and prefixes were met where they are, how often
 * sessions moved, what the database was asked, and how long sessions of the rack were away.
 *
 *   node scripts/simulate-cluster.js [--nodes 1000] [--sessions 1000000] [--gateways 8] [--seconds 30] [--seed 1]
 */
import { parseArgs } from 'node:util'
import { Nodes } from '../dist/gateway/cluster/nodes.js'
import { RequestRoute, SessionOwners } from '../dist/gateway/cluster/route.js'

const { values } = parseArgs({
  options: Object.fromEntries(
    ['nodes', 'sessions', 'gateways', 'seconds', 'seed'].map((name) => [name, { type: 'string' }]),
  ),
})
const read = (name, otherwise) => Number(values[name] ?? otherwise)
const NUM_NODES = read('nodes', 1000)
const NUM_SESSIONS = read('sessions', 1_000_000)
const NUM_GATEWAYS = read('gateways', 8)
const WINDOW_S = read('seconds', 30)

const SLOTS = 64
const NODES_OF_A_RACK = 40
/** Of a request in a slot, exponentially distributed. */
const MEAN_S = 8
/** Share of requests that belong to a session. */
const IN_SESSION = 0.6
const NUM_PREFIXES = 20_000
/** Prefixes that a node keeps. */
const KEPT_PREFIXES = 512
const RENEW_S = 2
const LEASE_S = 10
/** Share of all slots that are busy, by the time of the day; at the last one a rack fails. */
const DAY = [
  ['night', 0.15, false],
  ['morning', 0.45, false],
  ['noon', 0.7, false],
  ['peak', 0.85, false],
  ['peak, a rack fails', 0.85, true],
]

let seed = read('seed', 1)
/** Evenly in [0, 1): xorshift, so that a run can be repeated. */
function random() {
  seed ^= seed << 13
  seed ^= seed >>> 17
  seed ^= seed << 5
  return (seed >>> 0) / 2 ** 32
}
/** Few are asked for often. */
const skewed = (count) => Math.floor(count ** random()) - 1

/** Events by their time. */
class Heap {
  #all = []

  get size() {
    return this.#all.length
  }

  push(at, run) {
    const all = this.#all
    let i = all.push({ at, run }) - 1
    while (i > 0) {
      const parent = (i - 1) >> 1
      if (all[parent].at <= all[i].at) return
      ;[all[parent], all[i]] = [all[i], all[parent]]
      i = parent
    }
  }

  pop() {
    const all = this.#all
    const [first] = all
    const last = all.pop()
    if (all.length === 0) return first
    all[0] = last
    for (let i = 0; ; ) {
      const [left, right] = [2 * i + 1, 2 * i + 2]
      let least = i
      if (left < all.length && all[left].at < all[least].at) least = left
      if (right < all.length && all[right].at < all[least].at) least = right
      if (least === i) return first
      ;[all[least], all[i]] = [all[i], all[least]]
      i = least
    }
  }
}

let now = 0
const clock = () => 1000 * now
const events = new Heap()
const nodes = Array.from({ length: NUM_NODES }, (_, i) => ({
  id: `n${i}`,
  inFlight: 0,
  reported: 0,
  leaseEnd: LEASE_S,
  isUp: true,
  prefixes: new Map(),
}))
const byId = new Map(nodes.map((node) => [node.id, node]))
/** As the database has it. */
const ownerOf = new Map()
const gateways = Array.from({ length: NUM_GATEWAYS }, () => ({
  nodes: new Nodes(clock),
  owners: new SessionOwners(Math.ceil((2 * NUM_SESSIONS) / NUM_GATEWAYS)),
}))

const EMPTY = {
  ...{ requests: 0, turns: 0, home: 0, moves: 0, prompts: 0, prefixHits: 0 },
  ...{ misdirected: 0, retried: 0, failed: 0, statements: 0, awaySessions: 0 },
}
let counts = { ...EMPTY }
let away = []

const membersNow = () =>
  nodes
    .filter(({ leaseEnd }) => leaseEnd > now)
    .map(({ id, reported }) => ({
      ...{ id, node: id, url: `http://${id}`, model: 'm', slots: SLOTS, inFlight: reported },
    }))

function renew() {
  for (const node of nodes) {
    if (!node.isUp) continue
    node.reported = node.inFlight
    node.leaseEnd = now + LEASE_S
    counts.statements++
  }
  const members = membersNow()
  for (const { nodes: known } of gateways) known.update(members)
  // Members and keys, of gateways; keys, of nodes.
  counts.statements += 2 * NUM_GATEWAYS + NUM_NODES
  events.push(now + RENEW_S, renew)
}

/** What a node does with a request, or why not; in seconds, how long it waits for a session's lease to end. */
function askNode({ node: target, mayTake }, session) {
  const node = byId.get(target.id)
  if (!node.isUp) return { failure: { kind: 'unavailable' } }
  if (session === null) return { node, waitS: 0 }
  const owner = ownerOf.get(session)
  if (owner === undefined || owner === node) {
    if (owner === undefined) counts.statements += 2
    ownerOf.set(session, node)
    return { node, waitS: 0 }
  }
  // A claim that another's is in the way of, and who that is.
  counts.statements += 2
  if (!mayTake && owner.leaseEnd > now) return { failure: { kind: 'misdirected', owner: owner.id } }
  const waitS = owner.isUp ? 0 : Math.max(0, owner.leaseEnd - now)
  // Letting it go, and the claim that succeeds.
  counts.statements += 3
  counts.moves++
  if (!owner.isUp) {
    counts.awaySessions++
    away.push(waitS)
  }
  ownerOf.set(session, node)
  return { node, waitS }
}

function request() {
  const gateway = gateways[Math.floor(random() * NUM_GATEWAYS)]
  const isTurn = random() < IN_SESSION
  const session = isTurn ? `s${Math.floor(random() * NUM_SESSIONS)}` : null
  const prefix = isTurn ? '' : `p${skewed(NUM_PREFIXES)}`
  counts.requests++
  let stored = null
  if (session !== null && gateway.owners.get(session) === null) {
    counts.statements++
    const owner = ownerOf.get(session)
    stored = owner !== undefined && owner.leaseEnd > now ? owner.id : null
  }
  const before = session === null ? undefined : ownerOf.get(session)
  const way = new RequestRoute(
    gateway.nodes,
    gateway.owners,
    { model: 'm', session, prefix },
    stored,
  )
  for (let step = way.next(); step !== null; step = way.next()) {
    const answer = askNode(step, session)
    if (answer.failure !== undefined) {
      way.failed(step, answer.failure)
      counts[answer.failure.kind === 'misdirected' ? 'misdirected' : 'retried']++
      continue
    }
    way.answered(step)
    begin(gateway, answer, { isTurn, prefix, isHome: before === answer.node })
    return
  }
  counts.failed++
}

function begin(gateway, { node, waitS }, { isTurn, prefix, isHome }) {
  if (isTurn) {
    counts.turns++
    if (isHome) counts.home++
    // The turn is published.
    counts.statements++
  } else {
    counts.prompts++
    if (node.prefixes.delete(prefix)) counts.prefixHits++
    node.prefixes.set(prefix, true)
    if (node.prefixes.size > KEPT_PREFIXES) node.prefixes.delete(node.prefixes.keys().next().value)
  }
  const leave = gateway.nodes.take(node.id)
  node.inFlight++
  const queueS = node.inFlight > SLOTS ? ((node.inFlight - SLOTS) * MEAN_S) / SLOTS : 0
  events.push(now + waitS + queueS - Math.log(1 - random()) * MEAN_S, () => {
    leave()
    node.inFlight--
  })
}

function runWindow(name, load, fails) {
  const perSecond = (load * NUM_NODES * SLOTS) / MEAN_S
  const start = now
  const arrive = () => {
    request()
    events.push(now - Math.log(1 - random()) / perSecond, arrive)
  }
  // Until the load is as it will be.
  const counted = start + 2 * MEAN_S
  const end = counted + WINDOW_S
  let isArriving = true
  events.push(start, () => arrive())
  events.push(counted, () => {
    counts = { ...EMPTY }
    away = []
    if (!fails) return
    for (const node of nodes.slice(0, NODES_OF_A_RACK)) node.isUp = false
  })
  while (isArriving && events.size > 0) {
    const { at, run } = events.pop()
    if (at >= end) {
      isArriving = false
      break
    }
    now = at
    run()
  }
  now = end
  report(name, load, perSecond)
  // What arrives is of the next window; what runs goes on.
  forgetArrivals()
}

/** Simplest: all that is left is let end at once. */
function forgetArrivals() {
  for (const node of nodes) {
    node.inFlight = 0
    node.reported = 0
  }
  for (const gateway of gateways) gateway.nodes = new Nodes(clock)
  while (events.size > 0) events.pop()
  renew()
}

const percent = (part, whole) => `${((100 * part) / Math.max(1, whole)).toFixed(2)} %`

function report(name, load, perSecond) {
  const sorted = away.sort((a, b) => a - b)
  const at = (share) => (sorted[Math.floor(share * (sorted.length - 1))] ?? 0).toFixed(1)
  const line = {
    window: name,
    load: percent(load, 1),
    'requests/s': Math.round(perSecond),
    'sessions in place': percent(counts.home, counts.turns),
    'prefix hits': percent(counts.prefixHits, counts.prompts),
    'moves/s': (counts.moves / WINDOW_S).toFixed(1),
    misdirected: percent(counts.misdirected, counts.requests),
    retried: percent(counts.retried, counts.requests),
    failed: counts.failed,
    'statements/s': Math.round(counts.statements / WINDOW_S),
    'away p50/max s': counts.awaySessions === 0 ? '' : `${at(0.5)} / ${at(1)}`,
  }
  process.stdout.write(`${JSON.stringify(line)}\n`)
}

for (let i = 0; i < NUM_SESSIONS; i++) ownerOf.set(`s${i}`, nodes[Math.floor(random() * NUM_NODES)])
renew()
for (const [name, load, fails] of DAY) runWindow(name, load, fails)
