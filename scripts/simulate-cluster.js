/**
 * Simulates a cluster of a thousand nodes in virtual time, with the code of gateways and members: routes
 * (gateway/cluster), leases, members and owners of sessions (cluster/). A database in memory answers and counts their
 * statements. Simulates windows of a day from night to peak, then racks that fail and return. Prints how often requests
 * met their session or prefix in place, how often sessions moved, the load of the database, how many answers broke off,
 * how long sessions of failed racks were unreachable, and how long users noticed.
 *
 *   node scripts/simulate-cluster.js [--nodes 1000] [--sessions 1000000] [--gateways 8] [--seconds 30] [--seed 1]
 */
import { parseArgs } from 'node:util'
import { Lease } from '../dist/cluster/lease.js'
import { Members } from '../dist/cluster/members.js'
import { ownerOf, take } from '../dist/cluster/ownership.js'
import { pauseAfter } from '../dist/gateway/cluster/node.js'
import { Nodes } from '../dist/gateway/cluster/nodes.js'
import { RequestRoute, SessionOwners } from '../dist/gateway/cluster/route.js'
import { VirtualDatabase } from './virtual-database.js'

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
/** Racks of 40 nodes each, with a thousand nodes. */
const RACKS = 25
/** Time of a request in a slot, exponentially distributed. */
const MEAN_S = 8
/** Share of requests that belong to a session. */
const IN_SESSION = 0.6
const NUM_PREFIXES = 20_000
/** Prefixes that a node keeps. */
const KEPT_PREFIXES = 512
const RENEW_S = 2
/** The share of busy slots, and the number of failed racks in a window. */
const DAY = [
  ['night', 0.15, 0],
  ['morning', 0.45, 0],
  ['noon', 0.7, 0],
  ['peak', 0.85, 0],
  ['peak, a rack fails', 0.85, 1],
  ['noon, five racks fail', 0.7, 5],
  ['noon, all are back', 0.7, 0],
]

let seed = read('seed', 1)
/** Uniform in [0, 1): xorshift, so that a run can be repeated. */
function random() {
  seed ^= seed << 13
  seed ^= seed >>> 17
  seed ^= seed << 5
  return (seed >>> 0) / 2 ** 32
}
/** A few are requested often. */
const skewed = (count) => Math.floor(count ** random()) - 1

/** Events by their time. */
class Heap {
  #all = []

  get size() {
    return this.#all.length
  }

  /** The time of the first event. */
  get next() {
    return this.#all[0].at
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
const database = new VirtualDatabase(() => now)
const nodes = []
const byId = new Map()
const gateways = Array.from({ length: NUM_GATEWAYS }, () => ({
  members: new Members(database),
  nodes: new Nodes(clock),
  owners: new SessionOwners(Math.ceil((2 * NUM_SESSIONS) / NUM_GATEWAYS)),
}))

/** A new process. This script renews its lease, in virtual time. */
async function startNode(index) {
  const node = {
    ...{ id: `n${index}`, inFlight: 0, isUp: true, prefixes: new Map(), running: new Set() },
    ...{ worker: `n${index} ${now}`, lease: null },
  }
  nodes[index] = node
  byId.set(node.id, node)
  const url = `http://${node.id}`
  const facts = { id: node.worker, node: node.id, url, model: 'm', fingerprint: 'm', slots: SLOTS, info: {} }
  node.lease = await Lease.join(database, facts, { renewMs: 2 ** 31 - 1, inFlight: () => node.inFlight })
}

const EMPTY = {
  ...{ requests: 0, turns: 0, home: 0, moves: 0, prompts: 0, prefixHits: 0 },
  ...{ misdirected: 0, retried: 0, failed: 0, cut: 0, lastTrouble: 0 },
}
let counts = { ...EMPTY }
let countedFrom = 0
/** Seconds that turns waited for a lease to expire. */
let away = []

const trouble = () => {
  counts.lastTrouble = now - countedFrom
}

async function renew() {
  for (const { isUp, lease } of nodes) if (isUp) await lease.renew()
  for (const { members, nodes: known } of gateways) {
    await members.refresh()
    known.update(members.list)
  }
  // Polls: keys at each member, unclaimed batches at nodes. Not included: key limits, two per second for each member.
  for (let i = 0; i < NUM_GATEWAYS + 2 * NUM_NODES; i++) database.other()
  events.push(now + RENEW_S, renew)
}

const sessionKey = (id) => ({ model: 'm', tenant: 't', id })

/** Claims a session as shared-store.ts does: null, or its owner. */
async function claim(node, session) {
  const taken = await take(database, sessionKey(session), { worker: node.worker, mayCreate: true, gap: 0 })
  if (taken === null) return { owner: await ownerOf(database, sessionKey(session)) }
  // The use of the tenant, and where the state may be fetched.
  database.other()
  if (taken.former !== null) database.other()
  return null
}

/** A node handles a request, or says why not. */
async function askNode({ node: target, mayTake }, session) {
  const node = byId.get(target.id)
  if (!node.isUp) return { failure: { kind: 'unavailable' } }
  if (session === null || database.ownerOf(session) === node.worker) return { node, waits: false }
  const refused = await claim(node, session)
  if (refused === null) {
    counts.moves++
    return { node, waits: false }
  }
  if (!mayTake) return { failure: { kind: 'misdirected', owner: refused.owner?.node ?? null } }
  return { node, waits: !(await takeFrom(node, session, refused.owner)) }
}

/** As gateway/cluster/node.ts: asks the owner to release the session. False if the owner does not answer. */
async function takeFrom(node, session, owner) {
  const other = owner === null ? null : byId.get(owner.node)
  const isThere = other?.isUp === true && other.worker === owner.owner
  if (isThere) database.letGo(session)
  const refused = await claim(node, session)
  if (refused === null) counts.moves++
  return refused === null
}

async function request() {
  const gateway = gateways[Math.floor(random() * NUM_GATEWAYS)]
  const isTurn = random() < IN_SESSION
  const session = isTurn ? `s${Math.floor(random() * NUM_SESSIONS)}` : null
  const prefix = isTurn ? '' : `p${skewed(NUM_PREFIXES)}`
  counts.requests++
  const isNew = session !== null && gateway.owners.get(session) === null
  const stored = isNew ? await ownerOf(database, sessionKey(session)) : null
  const before = session === null ? null : database.ownerOf(session)
  const way = new RequestRoute(gateway.nodes, gateway.owners, { model: 'm', session, prefix }, stored?.node ?? null)
  for (let step = way.next(); step !== null; step = way.next()) {
    const answer = await askNode(step, session)
    if (answer.failure !== undefined) {
      way.failed(step, answer.failure)
      const isMisdirected = answer.failure.kind === 'misdirected'
      counts[isMisdirected ? 'misdirected' : 'retried']++
      if (!isMisdirected) trouble()
      continue
    }
    way.answered(step)
    const { node, waits } = answer
    const leave = gateway.nodes.take(node.id)
    node.inFlight++
    const asked = { gateway, node, leave, isTurn, session, prefix, isHome: before === node.worker }
    if (waits) waitForLease(asked, now)
    else begin(asked)
    return
  }
  counts.failed++
  trouble()
}

function waitForLease(asked, since) {
  events.push(now + pauseAfter(1000 * (now - since)) / 1000, async () => {
    const { node, session } = asked
    trouble()
    const owner = await ownerOf(database, sessionKey(session))
    if (node.isUp && !(await takeFrom(node, session, owner))) waitForLease(asked, since)
    else {
      away.push(now - since)
      begin(asked)
    }
  })
}

function begin({ node, leave, isTurn, prefix, isHome }) {
  if (isTurn) {
    counts.turns++
    if (isHome) counts.home++
  } else {
    counts.prompts++
    if (node.prefixes.delete(prefix)) counts.prefixHits++
    node.prefixes.set(prefix, true)
    if (node.prefixes.size > KEPT_PREFIXES) node.prefixes.delete(node.prefixes.keys().next().value)
  }
  const queueS = node.inFlight > SLOTS ? ((node.inFlight - SLOTS) * MEAN_S) / SLOTS : 0
  let hasEnded = false
  const end = () => {
    if (hasEnded) return
    hasEnded = true
    leave()
    node.inFlight--
    node.running.delete(end)
  }
  node.running.add(end)
  events.push(now + queueS - Math.log(1 - random()) * MEAN_S, () => {
    if (!hasEnded && isTurn) database.publish()
    end()
  })
}

/** Running answers break off. */
function fail(node) {
  node.isUp = false
  counts.cut += node.running.size
  for (const end of [...node.running]) end()
}

async function runWindow(name, load, racksDown) {
  const perSecond = (load * NUM_NODES * SLOTS) / MEAN_S
  for (const [index, { isUp }] of nodes.entries()) if (!isUp) await startNode(index)
  let isArriving = true
  const arrive = async () => {
    if (!isArriving) return
    await request()
    events.push(now - Math.log(1 - random()) / perSecond, arrive)
  }
  events.push(now, arrive)
  // Until the load is steady.
  await runUntil(now + 2 * MEAN_S)
  counts = { ...EMPTY }
  away = []
  countedFrom = now
  database.numStatements = 0
  const numDown = Math.round((racksDown * NUM_NODES) / RACKS)
  for (const node of nodes.slice(0, numDown)) fail(node)
  // The first seconds show the most that a failure costs.
  await runUntil(countedFrom + Math.min(10, WINDOW_S))
  const early = database.numStatements / Math.min(10, WINDOW_S)
  await runUntil(countedFrom + WINDOW_S)
  report({ name, load, perSecond, early })
  isArriving = false
}

async function runUntil(end) {
  while (events.size > 0 && events.next <= end) {
    const { at, run } = events.pop()
    now = at
    await run()
  }
  now = end
}

const percent = (part, whole) => `${((100 * part) / Math.max(1, whole)).toFixed(2)} %`

function report({ name, load, perSecond, early }) {
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
    'sent again': percent(counts.retried, counts.requests),
    refused: counts.failed,
    'broken off': counts.cut,
    'statements/s': Math.round(database.numStatements / WINDOW_S),
    'statements/s, first 10 s': Math.round(early),
    'turns that waited': away.length,
    'waited p50/max s': away.length === 0 ? '' : `${at(0.5)} / ${at(1)}`,
    'noticed for s': counts.lastTrouble.toFixed(1),
  }
  process.stdout.write(`${JSON.stringify(line)}\n`)
}

for (let i = 0; i < NUM_NODES; i++) await startNode(i)
for (let i = 0; i < NUM_SESSIONS; i++) database.seed(`s${i}`, nodes[Math.floor(random() * NUM_NODES)].worker)
await renew()
for (const [name, load, racksDown] of DAY) await runWindow(name, load, racksDown)
process.exit()
