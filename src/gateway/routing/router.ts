/**
 * Routes the requests of one model over its workers: to the worker that probably has the state, unless that one is much
 * busier than the others, else to the least busy one. If a worker dies before a request has begun, the request is sent
 * once more to another. It owns no worker, and knows neither HTTP nor processes.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { ModelEntry, ModelState } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type {
  EngineCall,
  EngineCalls,
  EngineEvent,
  EngineInfo,
  GenerateRequest,
  SessionUse,
} from '../../engine/messages.ts'
import { type EngineStats, summedStats } from '../../engine/stats.ts'
import { SkeinError } from '../../errors.ts'
import { PrefixHomes, prefixPoints } from './prefix-affinity.ts'
import type { EngineSource } from './registry.ts'
import { type Opened, opened, Relay } from './relay.ts'
import {
  homeOfNew,
  leastBusy,
  leastGiven,
  leave,
  meanInFlight,
  mergedInfo,
  type Replica,
  SESSION_ROOTS,
  slackAt,
  take,
} from './replicas.ts'
import { SessionAffinity } from './session-affinity.ts'
import { SessionCalls } from './session-calls.ts'

/**
 * Requests in flight are not the whole load: turns whose state is at hand end quickly, so the worker with the busiest
 * sessions would attract more and more of them. A worker that has been given this many requests more than one with fewer
 * in flight loses a session to it.
 */
const MOST_AHEAD = 12
/** By so many requests that session counts as moved already, or others would follow it at once. */
const MOVED = 1
/** Time that a request waits for another worker if its own died before it began. */
const RETRY_WAIT_MS = 60_000
const RETRY_POLL_MS = 50

/** A replica as the router sees it. */
export interface RoutedReplica extends Replica {
  readonly state: ModelState
  readonly reason: string | null
  /** It was given up without ever having been ready, so nobody relies on it. */
  readonly neverServed: boolean
}

/** The worker of a request, which counts it until `leave`. */
interface Place {
  readonly replica: Replica
  readonly leave: () => void
}

/** Counts of routing decisions; monotonic. */
export interface RouterCounts {
  sessionHits: number
  prefixHits: number
  /** Requests sent elsewhere because the worker with the state was too busy or gone. */
  sessionSpills: number
  prefixSpills: number
  retries: number
}

/** State shared by all routers to the workers of one model: the model's own, and one for each single worker. */
export class RouteMemory {
  readonly prefixes = new PrefixHomes()
  readonly sessions = new SessionAffinity()
  readonly counts: RouterCounts = { sessionHits: 0, prefixHits: 0, sessionSpills: 0, prefixSpills: 0, retries: 0 }
}

export class Router implements EngineSource, EngineClient {
  readonly #replicas: () => readonly RoutedReplica[]
  readonly #memory: RouteMemory
  readonly #calls: SessionCalls

  constructor(replicas: () => readonly RoutedReplica[], memory = new RouteMemory()) {
    this.#replicas = replicas
    this.#memory = memory
    this.#calls = new SessionCalls(memory.sessions, (worker) => this.#holderOf(worker))
  }

  get state(): ModelState {
    const states = this.#replicas().map(({ state }) => state)
    const order: readonly ModelState[] = ['ready', 'restarting', 'loading', 'failed']
    return order.find((state) => states.includes(state)) ?? 'stopped'
  }

  get reason(): string | null {
    if (this.client !== null) return null
    const { state } = this
    return this.#replicas().find((replica) => replica.state === state)?.reason ?? state
  }

  get client(): EngineClient | null {
    return this.#ready().length === 0 ? null : this
  }

  get workers(): NonNullable<ModelEntry['workers']> {
    const replicas = this.#replicas()
    const failed = replicas.filter(({ neverServed }) => neverServed).length
    return { all: replicas.length - failed, ready: this.#ready().length, failed }
  }

  get info(): EngineInfo {
    return mergedInfo(this.#clients())
  }

  get stats(): EngineStats {
    return summedStats(this.#clients().map(({ stats }) => stats))
  }

  generate(request: GenerateRequest, signal?: AbortSignal): AsyncIterable<EngineEvent> {
    const at: { place: Place | null } = { place: null }
    return new Relay({
      open: () => this.#open(request, signal, at),
      event: (event) => (event.type === 'prompt' ? { ...event, worker: at.place!.replica.id } : event),
      end: () => at.place?.leave(),
    })
  }

  /** If every worker would refuse it. */
  refusalOf(tenant: string): SkeinError | null {
    let refusal: SkeinError | null = null
    for (const { client } of this.#replicas()) {
      if (client === null) continue
      refusal = client.refusalOf?.(tenant) ?? null
      if (refusal === null) return null
    }
    return refusal
  }

  async call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']> {
    return this.#calls.call(method, params, this.#ready())
  }

  /** The creator of the workers ends them. */
  async close(): Promise<void> {}

  /** Until its first event has come, a request may move to another worker. Sets `at.place` to its final place. */
  async #open(request: GenerateRequest, signal: AbortSignal | undefined, at: { place: Place | null }): Promise<Opened> {
    const tried = new Set<string>()
    for (;;) {
      const chosen = this.#place(request, tried)
      const place = chosen instanceof Promise ? await chosen : chosen
      const { replica } = place
      try {
        const events = await opened(clientOf(replica).generate(request, signal))
        at.place = place
        return events
      } catch (thrown) {
        place.leave()
        if (signal?.aborted || !this.#mayRetry(replica, tried, thrown)) throw thrown
      }
      this.#memory.counts.retries++
      await this.#anyReady(tried, signal)
    }
  }

  /** Synchronous if nothing has to move, so that requests that arrive together see each other. */
  #place(request: GenerateRequest, tried: ReadonlySet<string>): Place | Promise<Place> {
    if (request.session !== undefined) return this.#placeInSession(request, request.session, tried)
    const replica = this.#byPrefix(request, tried)
    take(replica)
    return { replica, leave: () => leave(replica) }
  }

  async #placeInSession(
    { tenant = '' }: GenerateRequest,
    { id }: SessionUse,
    tried: ReadonlySet<string>,
  ): Promise<Place> {
    const { sessions, counts } = this.#memory
    const home = sessions.of({ tenant, id })
    const { worker } = home
    const replica = await sessions.enter(home, (at) => this.#homeOf(at, this.#ready(tried)))
    if (worker === replica) counts.sessionHits++
    else if (worker !== null) counts.sessionSpills++
    return { replica, leave: () => sessions.leave(home, replica) }
  }

  #byPrefix(request: GenerateRequest, tried: ReadonlySet<string>): Replica {
    const ready = this.#ready(tried)
    // With one worker there is no choice.
    if (ready.length === 1 || request.cache === 'no-store') return this.#leastBusy(ready)
    const { prefixes, counts } = this.#memory
    const points = prefixPoints(request)
    const homes = prefixes.find(points)
    const holders = ready.filter(({ id }) => homes.includes(id))
    const holder = holders.length === 0 ? null : this.#leastBusy(holders)
    const chosen = this.#affine(holder, ready)
    if (holder !== null && chosen === holder) counts.prefixHits++
    else if (homes.length > 0) counts.prefixSpills++
    prefixes.note(points, chosen.id)
    return chosen
  }

  /** The worker that holds the session, if it can be asked. For calls, which are no load. */
  #holderOf(worker: Replica | null): Replica {
    const ready = this.#ready()
    return worker !== null && ready.includes(worker) ? worker : this.#leastBusy(ready)
  }

  #homeOf(holder: Replica | null, ready: readonly Replica[]): Replica {
    if (holder !== null && ready.includes(holder)) return this.#affine(holder, ready, SESSION_ROOTS)
    return homeOfNew(ready) ?? this.#leastBusy(ready)
  }

  /** `holder` unless it is gone, too busy, or has lately been given more than another one that is less busy. */
  #affine(holder: Replica | null, ready: readonly Replica[], roots?: number): Replica {
    const least = this.#leastBusy(ready)
    if (holder === null || !ready.includes(holder)) return least
    if (holder.numInFlight > least.numInFlight + slackAt(meanInFlight(ready), roots)) return least
    const spared = leastGiven(ready.filter(({ numInFlight }) => numInFlight < holder.numInFlight))
    if (spared === null || holder.numGiven <= spared.numGiven + MOST_AHEAD) return holder
    holder.numGiven -= MOVED
    spared.numGiven += MOVED
    return spared
  }

  #leastBusy(ready: readonly Replica[]): Replica {
    const least = leastBusy(ready)
    if (least !== null) return least
    throw new SkeinError('model_not_loaded', `the model is not ready: ${this.reason}`)
  }

  /** Ready workers, without those that were tried if there are others. */
  #ready(tried: ReadonlySet<string> = NONE): readonly Replica[] {
    const ready = this.#replicas().filter(({ client }) => client !== null)
    const others = tried.size === 0 ? ready : ready.filter(({ id }) => !tried.has(id))
    return others.length === 0 ? ready : others
  }

  #clients(): EngineClient[] {
    const clients = this.#ready().map(clientOf)
    if (clients.length > 0) return clients
    throw new SkeinError('model_not_loaded', `the model is not ready: ${this.reason}`)
  }

  /** Retries once: after the death of a worker, or if one is full and another may have room. */
  #mayRetry(replica: Replica, tried: Set<string>, thrown: unknown): boolean {
    const isSecond = tried.size > 0
    tried.add(replica.id)
    const { code } = SkeinError.from(thrown)
    if (code === 'model_not_loaded') return !isSecond
    const hasOthers = this.#ready().some(({ id }) => !tried.has(id))
    return code === 'queue_full' && !isSecond && hasOthers
  }

  async #anyReady(tried: Set<string>, signal: AbortSignal | undefined): Promise<void> {
    const end = performance.now() + RETRY_WAIT_MS
    const mayCome = () => this.state === 'restarting' || this.state === 'loading'
    while (this.#ready(tried).length === 0 && mayCome() && performance.now() < end) {
      await delay(RETRY_POLL_MS, undefined, signal === undefined ? {} : { signal }).catch(() => {})
      if (signal?.aborted) throw new SkeinError('aborted', 'the request was cancelled')
    }
  }
}

const NONE: ReadonlySet<string> = new Set()

/** The client of a replica that was ready a moment ago. */
function clientOf({ client }: Replica): EngineClient {
  if (client !== null) return client
  throw new SkeinError('model_not_loaded', 'the worker has ended; retry')
}
