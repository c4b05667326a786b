/**
 * Whose request is admitted next, when several tenants want more than there is. Each tenant's requests are served in their
 * order; between tenants the one goes first that has been served least, in tokens fed to the model, weighted by its share
 * (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024). A tenant that comes
 * back starts level with the least served of those in line: being away earns nothing.
 *
 * A tenant with more than its part of the slots leaves free what others have had at once lately, up to their parts, so that
 * they need not wait for one of its answers to end. One tenant alone has everything, first come first served. Before all
 * that a request of a higher priority goes before one of a lower.
 * Pure counting: it knows no slots by number, no steps and no clock but the one it is given.
 */

/** What the line needs to know of a request. */
export interface Queued {
  /** Slots that it takes at once. */
  readonly numSlots: number
  /** It was admitted before and gave its slots to others (preemption.ts). */
  readonly isReturning?: boolean
  readonly request: {
    readonly tenant?: string | undefined
    readonly share?: number | undefined
    readonly priority?: number | undefined
  }
}

/** How much of the engine a tenant has. */
export interface Standing {
  readonly numHeld: number
  /** Slots that are its part, among the tenants that have or want slots now. */
  readonly part: number
  readonly share: number
  readonly served: number
}

interface Tenant<T> {
  readonly waiting: T[]
  share: number
  /** Tokens fed for it, divided by its share. */
  served: number
  /** Slots that the tenant holds, and slots that its requests in the line want. */
  numHeld: number
  numWanted: number
  /** The largest sum of the two lately, and when that was. */
  peak: number
  peakAt: number
  lastSeen: number
}

/** The tenant of requests without one: those of the supervisor, and of a process that has the engine to itself. */
const NOBODY = ''
/** For how long a tenant's last requests keep slots free for its next ones. */
const LATELY_MS = 60_000
/** The same where an answer gave its slot to such a request: it can be asked to do so again. */
const RETURN_MS = 2000

export class WaitingLine<T extends Queued> implements Iterable<T> {
  readonly #numSlots: number
  readonly #now: () => number
  readonly #tenants = new Map<string, Tenant<T>>()
  /** All waiting requests in order of arrival. */
  readonly #arrivals = new Set<T>()
  #numReturning = 0
  /** Service level of the last admitted tenant: where a tenant starts that joins an empty line. */
  #level = 0

  constructor(numSlots: number, now: () => number = () => performance.now()) {
    this.#numSlots = numSlots
    this.#now = now
  }

  get length(): number {
    return this.#arrivals.size
  }

  /** Requests that have not been admitted yet. */
  get numNew(): number {
    return this.length - this.#numReturning
  }

  /** In order of arrival. */
  [Symbol.iterator](): Iterator<T> {
    return this.#arrivals[Symbol.iterator]()
  }

  push(item: T): void {
    const tenant = this.#tenantOf(item)
    if (tenant.waiting.length === 0) tenant.served = Math.max(tenant.served, this.#startLevel())
    tenant.share = item.request.share ?? 1
    if (item.isReturning) this.#numReturning++
    else tenant.lastSeen = this.#now()
    const after = tenant.waiting.findIndex((other) => goesBefore(item, other))
    tenant.waiting.splice(after === -1 ? tenant.waiting.length : after, 0, item)
    tenant.numWanted += item.numSlots
    const demand = tenant.numHeld + tenant.numWanted
    if (demand >= this.#peakOf(tenant)) Object.assign(tenant, { peak: demand, peakAt: this.#now() })
    this.#arrivals.add(item)
  }

  /**
   * Whether a tenant has less than its part of a line of this length, so that even a full line takes its request.
   * `others` are not in the line yet and count as if they were.
   */
  isUnderPart({ tenant = '' }: Queued['request'], maxWaiting: number, others: Iterable<T> = []): boolean {
    const counts = new Map([[tenant, 0]])
    for (const [name, { waiting }] of this.#tenants) if (waiting.length > 0) counts.set(name, waiting.length)
    for (const { request } of others) {
      const { tenant: name = '' } = request
      counts.set(name, (counts.get(name) ?? 0) + 1)
    }
    return counts.size > 1 && (counts.get(tenant)! + 1) * counts.size <= maxWaiting
  }

  /** The request to admit next, which stays in the line until it is admitted; null when none may be. */
  next(numFree: number): T | null {
    if (this.length === 0) return null
    const recent = this.#recent()
    const partOf = this.#partsAmong(recent)
    const keptFor = (tenant: Tenant<T>) => Math.max(0, Math.min(this.#peakOf(tenant), partOf(tenant)) - tenant.numHeld)
    const keptSince = (since: number) => recent.reduce((sum, one) => sum + (one.lastSeen < since ? 0 : keptFor(one)), 0)
    const kept = keptSince(Number.NEGATIVE_INFINITY)
    const keptNow = this.#numReturning === 0 ? kept : keptSince(this.#now() - RETURN_MS)
    let best: Tenant<T> | null = null
    for (const tenant of recent) {
      if (tenant.waiting.length === 0) continue
      const head = tenant.waiting[0]!
      const { numSlots } = head
      const isOverPart = tenant.numHeld + numSlots > partOf(tenant)
      // A tenant without slots may always begin, however many it wants; so may a request that is more urgent than those
      // that slots are kept for.
      const mayKeepOut = tenant.numHeld > 0 && isOverPart && priorityOf(head) <= 0
      const keptFromIt = (head.isReturning ? keptNow : kept) - keptFor(tenant)
      if (mayKeepOut && numFree - numSlots < keptFromIt) continue
      if (best === null || isBefore(tenant, best)) best = tenant
    }
    return best?.waiting[0] ?? null
  }

  /** The first few requests of each tenant, in the order in which their tenants are served next. */
  firstOfEach(count: number): T[] {
    const tenants = [...this.#tenants.values()].filter(({ waiting }) => waiting.length > 0)
    tenants.sort((a, b) => (isBefore(a, b) ? -1 : 1))
    return Array.from({ length: count }).flatMap((_, i) => tenants.flatMap(({ waiting }) => waiting.slice(i, i + 1)))
  }

  standingOf(item: Queued): Standing {
    const tenant = this.#tenantOf(item)
    const active = [...this.#tenants.values()].filter((one) => one === tenant || one.waiting.length + one.numHeld > 0)
    const { numHeld, share, served } = tenant
    return { numHeld, share, served, part: this.#partsAmong(active)(tenant) }
  }

  /** What each tenant with slots holds, as a fraction of its part. */
  fullness(): ReadonlyMap<string, number> {
    const active = [...this.#tenants].filter(([, { waiting, numHeld }]) => waiting.length + numHeld > 0)
    const partOf = this.#partsAmong(active.map(([, tenant]) => tenant))
    const holding = active.filter(([, { numHeld }]) => numHeld > 0)
    return new Map(holding.map(([name, tenant]) => [name, tenant.numHeld / partOf(tenant)]))
  }

  /** Takes a request out of the line; it holds its slots from now on. */
  admit(item: T): void {
    const tenant = this.#tenantOf(item)
    this.#level = tenant.served
    this.remove(item)
    tenant.numHeld += item.numSlots
  }

  /** Takes a request out of the line without admitting it. Does nothing when it is not in the line. */
  remove(item: T): void {
    if (!this.#arrivals.delete(item)) return
    if (item.isReturning) this.#numReturning--
    const tenant = this.#tenantOf(item)
    tenant.waiting.splice(tenant.waiting.indexOf(item), 1)
    tenant.numWanted -= item.numSlots
  }

  /** One slot of an admitted request is free again. */
  release(item: Queued): void {
    const tenant = this.#tenantOf(item)
    tenant.numHeld--
    tenant.lastSeen = this.#now()
  }

  /** Counts tokens that are fed for an admitted request. A prompt counts in full at admission. */
  charge(item: Queued, numTokens: number): void {
    const tenant = this.#tenantOf(item)
    tenant.served += numTokens / tenant.share
  }

  /** The most slots that the tenant held or wanted at once lately. */
  #peakOf({ numHeld, numWanted, peak, peakAt }: Tenant<T>): number {
    return peakAt < this.#now() - LATELY_MS ? numHeld + numWanted : peak
  }

  /** Tenants that have something here or had it lately; the others are forgotten, and nobody, whose requests are probes, at once. */
  #recent(): Tenant<T>[] {
    const since = this.#now() - LATELY_MS
    for (const [name, { waiting, numHeld, lastSeen }] of this.#tenants) {
      if (waiting.length + numHeld === 0 && (name === NOBODY || lastSeen < since)) this.#tenants.delete(name)
    }
    return [...this.#tenants.values()]
  }

  #partsAmong(tenants: readonly Tenant<T>[]): (tenant: Tenant<T>) => number {
    const shares = tenants.reduce((sum, { share }) => sum + share, 0)
    return ({ share }) => Math.max(1, Math.floor((this.#numSlots * share) / shares))
  }

  #startLevel(): number {
    const levels = [...this.#tenants.values()].filter(({ waiting }) => waiting.length > 0).map(({ served }) => served)
    return levels.length === 0 ? this.#level : Math.min(...levels)
  }

  #tenantOf({ request: { tenant: name = NOBODY } }: Queued): Tenant<T> {
    let tenant = this.#tenants.get(name)
    if (tenant === undefined) {
      const now = this.#now()
      const counts = { served: 0, numHeld: 0, numWanted: 0, peak: 0 }
      tenant = { waiting: [], share: 1, ...counts, peakAt: now, lastSeen: now }
      this.#tenants.set(name, tenant)
    }
    return tenant
  }
}

export function priorityOf({ request }: Queued): number {
  return request.priority ?? 0
}

/** Order among one tenant's requests: by priority, then begun before new, then by arrival. */
function goesBefore(a: Queued, b: Queued): boolean {
  const more = priorityOf(a) - priorityOf(b)
  return more > 0 || (more === 0 && a.isReturning === true && b.isReturning !== true)
}

/** Ties go to the tenant with fewer running requests, which is the newest one. */
function isBefore<T extends Queued>(a: Tenant<T>, b: Tenant<T>): boolean {
  const more = priorityOf(a.waiting[0]!) - priorityOf(b.waiting[0]!)
  if (more !== 0) return more > 0
  return a.served < b.served || (a.served === b.served && a.numHeld < b.numHeld)
}
