/**
 * Whose request is admitted next, when several tenants want more than there is. Each tenant's requests are served in their
 * order; between tenants the one goes first that has been served least, in tokens fed to the model, weighted by its share
 * (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024). A tenant that comes
 * back starts level with the least served of those in line: being away earns nothing.
 *
 * A tenant with more than its part of the slots leaves free what others have had at once lately, up to their parts, so that
 * they need not wait for one of its answers to end. One tenant alone has everything, first come first served.
 * Pure counting: it knows no slots by number, no steps and no clock but the one it is given.
 */

/** What the line needs of a request. */
export interface Queued {
  /** That it takes at once. */
  readonly numSlots: number
  readonly request: {
    readonly tenant?: string | undefined
    readonly share?: number | undefined
  }
}

interface Tenant<T> {
  readonly waiting: T[]
  share: number
  /** Tokens fed for it, divided by its share. */
  served: number
  /** Slots that it holds, and those that its requests in line want. */
  numHeld: number
  numWanted: number
  /** The most of both together, and when that was. */
  peak: number
  peakAt: number
  lastSeen: number
}

/** How long a tenant's last requests keep slots free for its next. */
const LATELY_MS = 60_000

export class WaitingLine<T extends Queued> implements Iterable<T> {
  readonly #numSlots: number
  readonly #now: () => number
  readonly #tenants = new Map<string, Tenant<T>>()
  /** All of them in order of arrival. */
  readonly #arrivals = new Set<T>()
  /** Where the last one to be admitted stood: the level of an empty line. */
  #level = 0

  constructor(numSlots: number, now: () => number = () => performance.now()) {
    this.#numSlots = numSlots
    this.#now = now
  }

  get length(): number {
    return this.#arrivals.size
  }

  /** In order of arrival. */
  [Symbol.iterator](): Iterator<T> {
    return this.#arrivals[Symbol.iterator]()
  }

  push(item: T): void {
    const tenant = this.#tenantOf(item)
    if (tenant.waiting.length === 0) tenant.served = Math.max(tenant.served, this.#startLevel())
    tenant.share = item.request.share ?? 1
    tenant.lastSeen = this.#now()
    tenant.waiting.push(item)
    tenant.numWanted += item.numSlots
    const demand = tenant.numHeld + tenant.numWanted
    if (demand >= this.#peakOf(tenant)) Object.assign(tenant, { peak: demand, peakAt: this.#now() })
    this.#arrivals.add(item)
  }

  /**
   * Whether a tenant has less than its part of a line of this length, so that a full one still takes its request. `others`
   * are not in line yet and count as if they were.
   */
  isUnderPart(
    { tenant = '' }: Queued['request'],
    maxWaiting: number,
    others: Iterable<T> = [],
  ): boolean {
    const counts = new Map([[tenant, 0]])
    for (const [name, { waiting }] of this.#tenants)
      if (waiting.length > 0) counts.set(name, waiting.length)
    for (const { request } of others) {
      const { tenant: name = '' } = request
      counts.set(name, (counts.get(name) ?? 0) + 1)
    }
    return counts.size > 1 && (counts.get(tenant)! + 1) * counts.size <= maxWaiting
  }

  /** The request that goes next, which stays in line until it is admitted; null when none may. */
  next(numFree: number): T | null {
    if (this.length === 0) return null
    const recent = this.#recent()
    const shares = recent.reduce((sum, { share }) => sum + share, 0)
    const partOf = ({ share }: Tenant<T>) =>
      Math.max(1, Math.floor((this.#numSlots * share) / shares))
    const keptFor = (tenant: Tenant<T>) =>
      Math.max(0, Math.min(this.#peakOf(tenant), partOf(tenant)) - tenant.numHeld)
    const kept = recent.reduce((sum, tenant) => sum + keptFor(tenant), 0)
    let best: Tenant<T> | null = null
    for (const tenant of recent) {
      if (tenant.waiting.length === 0) continue
      const { numSlots } = tenant.waiting[0]!
      const isOverPart = tenant.numHeld + numSlots > partOf(tenant)
      // With none yet it always may, however many it wants.
      const mayKeepOut = tenant.numHeld > 0 && isOverPart
      if (mayKeepOut && numFree - numSlots < kept - keptFor(tenant)) continue
      if (best === null || isBefore(tenant, best)) best = tenant
    }
    return best?.waiting[0] ?? null
  }

  /** It leaves the line and holds its slots. */
  admit(item: T): void {
    const tenant = this.#tenantOf(item)
    this.#level = tenant.served
    this.remove(item)
    tenant.numHeld += item.numSlots
  }

  /** It leaves the line without having been admitted; fine for one that is not in it. */
  remove(item: T): void {
    if (!this.#arrivals.delete(item)) return
    const tenant = this.#tenantOf(item)
    tenant.waiting.splice(tenant.waiting.indexOf(item), 1)
    tenant.numWanted -= item.numSlots
  }

  /** One of the slots of an admitted request is free again. */
  release(item: T): void {
    const tenant = this.#tenantOf(item)
    tenant.numHeld--
    tenant.lastSeen = this.#now()
  }

  /** Tokens that are fed to the model for an admitted request: those of its prompt at once, so that one admission weighs. */
  charge(item: T, numTokens: number): void {
    const tenant = this.#tenantOf(item)
    tenant.served += numTokens / tenant.share
  }

  /** The most slots that it has had or wanted at once lately. */
  #peakOf({ numHeld, numWanted, peak, peakAt }: Tenant<T>): number {
    return peakAt < this.#now() - LATELY_MS ? numHeld + numWanted : peak
  }

  /** Tenants that have something here or had it lately; others are forgotten. */
  #recent(): Tenant<T>[] {
    const since = this.#now() - LATELY_MS
    for (const [name, { waiting, numHeld, lastSeen }] of this.#tenants) {
      if (waiting.length + numHeld === 0 && lastSeen < since) this.#tenants.delete(name)
    }
    return [...this.#tenants.values()]
  }

  #startLevel(): number {
    const levels = [...this.#tenants.values()]
      .filter(({ waiting }) => waiting.length > 0)
      .map(({ served }) => served)
    return levels.length === 0 ? this.#level : Math.min(...levels)
  }

  #tenantOf({ request: { tenant: name = '' } }: T): Tenant<T> {
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

/** Of two served alike the one with less going on: that is the one that has just come. */
function isBefore(a: Tenant<unknown>, b: Tenant<unknown>): boolean {
  return a.served < b.served || (a.served === b.served && a.numHeld < b.numHeld)
}
