/**
 * Calls about sessions over all workers of a model: calls about one session go to the worker that holds it, and lists
 * are merged. Each worker has its own start states, which are changed in start-states.ts.
 */
import type { EngineClient } from '../../engine/client.ts'
import type { EngineCall, EngineCalls, SessionInfo, SessionRef } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { Replica } from './replicas.ts'
import type { SessionAffinity } from './session-affinity.ts'

type Handlers = {
  readonly [M in EngineCall]: (
    params: EngineCalls[M]['params'],
    ready: readonly Replica[],
  ) => Promise<EngineCalls[M]['result']>
}

export class SessionCalls {
  readonly #homes: SessionAffinity
  readonly #choose: (worker: Replica | null) => Replica
  readonly #handlers: Handlers

  constructor(homes: SessionAffinity, choose: (worker: Replica | null) => Replica) {
    this.#homes = homes
    this.#choose = choose
    this.#handlers = {
      'sessions.list': (params, ready) => this.#list(params, ready),
      'sessions.get': (params) => this.#atHome('sessions.get', params),
      'sessions.fork': (params) => this.#fork(params),
      'sessions.rewind': (params) => this.#atHome('sessions.rewind', params),
      'sessions.delete': (params, ready) => this.#delete(params, ready),
      'sessions.release': (params) => this.#atHome('sessions.release', params),
      'sessions.export': (params) => this.#atHome('sessions.export', params),
      'sessions.tokens': (params) => this.#atHome('sessions.tokens', params),
      'sessions.share': (params) => this.#atHome('sessions.share', params),
      'sessions.open': (params) => this.#atHome('sessions.open', params),
      'sessions.import': (params) => this.#atHome('sessions.import', params),
      'startStates.add': refuseStartState,
      'startStates.remove': refuseStartState,
    }
  }

  call<M extends EngineCall>(
    method: M,
    params: EngineCalls[M]['params'],
    ready: readonly Replica[],
  ): Promise<EngineCalls[M]['result']> {
    return this.#handlers[method](params, ready)
  }

  /** Does not move a session that is in use, nor one whose worker is only a little busier. */
  async #atHome<M extends EngineCall>(
    method: M,
    params: EngineCalls[M]['params'] & SessionRef,
  ): Promise<EngineCalls[M]['result']> {
    const home = this.#homes.of({ tenant: params.tenant, id: params.id })
    const worker = await this.#homes.enter(home, this.#choose)
    try {
      return await engineOf(worker).call(method, params)
    } finally {
      this.#homes.leave(home, worker)
    }
  }

  /**
   * Puts the new session where the old one is, because they share states. Requests for it meanwhile already go there.
   */
  async #fork(params: EngineCalls['sessions.fork']['params']): Promise<SessionInfo> {
    const { tenant, id, newId } = params
    const from = this.#homes.of({ tenant, id })
    const to = this.#homes.of({ tenant, id: newId })
    const worker = await this.#homes.enter(from, this.#choose)
    try {
      const other = await this.#homes.enter(to, () => worker)
      try {
        // Other requests use or create the new session on another worker.
        if (other !== worker) throw new SkeinError('conflict', `session ${newId} is in use`, { param: 'new_id' })
        return await engineOf(worker).call('sessions.fork', params)
      } finally {
        this.#homes.leave(to, other)
      }
    } finally {
      this.#homes.leave(from, worker)
    }
  }

  /** Releases it on the other workers, so that none still lists it. Its home stays, for requests that wait there. */
  async #delete(params: SessionRef, ready: readonly Replica[]): Promise<null> {
    await this.#atHome('sessions.delete', params)
    const { worker } = this.#homes.of(params)
    const others = ready.filter((replica) => replica !== worker)
    const release = (replica: Replica) => replica.engine?.call('sessions.release', params)
    await Promise.allSettled(others.map(release))
    return null
  }

  /** Several workers may know a session through the store; the newest version counts. */
  async #list(
    params: EngineCalls['sessions.list']['params'],
    ready: readonly Replica[],
  ): Promise<readonly SessionInfo[]> {
    if (ready.length === 1) return engineOf(ready[0]!).call('sessions.list', params)
    const { tenant, limit, after } = params
    const lists = await Promise.all(ready.map((replica) => engineOf(replica).call('sessions.list', { tenant })))
    const newest = new Map<string, SessionInfo>()
    for (const info of lists.flat()) {
      const other = newest.get(info.id)
      if (other === undefined || other.version < info.version) newest.set(info.id, info)
    }
    const all = [...newest.values()].sort((a, b) => b.updatedAt - a.updatedAt)
    const last = after === undefined ? null : all.findIndex(({ id }) => id === after)
    if (last === -1) {
      throw new SkeinError('not_found', `there is no session ${after}`, { param: 'session' })
    }
    const start = last === null ? 0 : last + 1
    return all.slice(start, limit === undefined ? undefined : start + limit)
  }
}

async function refuseStartState(): Promise<never> {
  throw new SkeinError('internal', 'start states are changed worker by worker')
}

function engineOf({ engine }: Replica): EngineClient {
  if (engine !== null) return engine
  throw new SkeinError('model_not_loaded', 'the worker has ended; retry')
}
