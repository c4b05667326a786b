/** What each tenant has of sessions and bytes, here and in the store, and may have. Knows nothing of turns. */
import { SkeinError } from '../errors.ts'
import type { Session } from './kept-state.ts'
import type { Usage } from './store/store.ts'

interface Tenant {
  readonly sessions: Map<string, Session>
  /** Bytes of the states that their turns hold. */
  bytes: number
  /** Sessions that are being written to: each is going to have a turn more. */
  numBusy: number
}

const NO_USAGE: Usage = { sessions: 0, bytes: 0 }

export class Tenants {
  readonly #limits: Pick<SessionLimits, 'maxSessions' | 'maxBytes'>
  readonly #tenants = new Map<string, Tenant>()
  /** In the store, beside the sessions that are here. */
  readonly #elsewhere = new Map<string, Usage>()

  constructor(limits: Pick<SessionLimits, 'maxSessions' | 'maxBytes'>) {
    this.#limits = limits
  }

  get(namespace: string): Pick<Tenant, 'sessions'> {
    return this.#tenants.get(namespace) ?? createTenant()
  }

  *sessions(): Generator<Session> {
    for (const { sessions } of this.#tenants.values()) yield* sessions.values()
  }

  add(session: Session): void {
    this.#of(session.namespace).sessions.set(session.id, session)
  }

  remove({ namespace, id }: Session): void {
    this.#of(namespace).sessions.delete(id)
    this.change(namespace, {})
  }

  change(namespace: string, { bytes = 0, numBusy = 0 }: { bytes?: number; numBusy?: number }): void {
    const tenant = this.#of(namespace)
    tenant.bytes += bytes
    tenant.numBusy += numBusy
    const isNothing = tenant.sessions.size === 0 && tenant.numBusy === 0 && tenant.bytes === 0
    if (isNothing) this.#tenants.delete(namespace)
  }

  setElsewhere(namespace: string, usage: Usage): void {
    this.#elsewhere.set(namespace, usage)
  }

  /** Throws too_large when a tenant may not have another session. */
  refuseSession(namespace: string): void {
    const { maxSessions } = this.#limits
    const elsewhere = this.#elsewhere.get(namespace) ?? NO_USAGE
    const count = this.get(namespace).sessions.size + elsewhere.sessions
    if (count < maxSessions) return
    const message = `${count} sessions are kept, which is the quota; delete some or raise --max-sessions`
    throw new SkeinError('too_large', message)
  }

  /**
   * Throws too_large when a tenant may not keep a turn of so many bytes more. Turns that are being written count as if they
   * were like it, so that many at once do not overrun the quota. `ownBytes` is a bound of its own.
   */
  refuseBytes(namespace: string, nextBytes: number, ownBytes?: number): void {
    const { bytes: here, numBusy } = this.#tenants.get(namespace) ?? createTenant()
    const elsewhere = this.#elsewhere.get(namespace) ?? NO_USAGE
    const coming = nextBytes === 0 ? 0 : (numBusy + 1) * nextBytes
    const bytes = here + elsewhere.bytes + coming
    const maxBytes = ownBytes ?? this.#limits.maxBytes
    if (bytes <= maxBytes) return
    const remedy = ownBytes === undefined ? '--max-sessions-mb' : 'what their key may store'
    const message = `sessions would take ${bytes} bytes, the quota is ${maxBytes}; delete some or raise ${remedy}`
    throw new SkeinError('too_large', message)
  }

  #of(namespace: string): Tenant {
    const tenant = this.#tenants.get(namespace) ?? createTenant()
    this.#tenants.set(namespace, tenant)
    return tenant
  }
}

function createTenant(): Tenant {
  return { sessions: new Map(), bytes: 0, numBusy: 0 }
}

export interface SessionLimits {
  /** Sessions of one tenant. */
  readonly maxSessions: number
  /** Bytes of the states of one tenant. */
  readonly maxBytes: number
  /** Newest turns of a session whose states are kept; the head is, whatever its age. */
  readonly maxTurns: number
  /** Time to live of a session that asks for none; null: for ever. */
  readonly ttlMs: number | null
}
