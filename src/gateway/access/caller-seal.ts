/**
 * Tells one member of a cluster who the caller is. A node trusts what gateways and nodes have signed, and no header of
 * a client.
 */
import { ROLES } from '../../api/route.ts'
import { denied, MemberSeal } from '../../cluster/member-seal.ts'
import type { Principal } from './auth.ts'

export interface SealedCaller {
  /** Null: a member acts for itself, on states and sessions of any tenant. */
  readonly principal: Principal | null
  /** The node may take the request's session from the node that has it. */
  readonly mayTake: boolean
  /** Identifies a request that may be repeated. */
  readonly origin?: string | undefined
}

export class CallerSeal {
  readonly #seal: MemberSeal

  /** `secret`: the cluster's own, or one given by the operator. */
  constructor(secret: Uint8Array | string, now?: () => number) {
    this.#seal = new MemberSeal(secret, now)
  }

  seal({ principal, mayTake, origin }: SealedCaller): string {
    return this.#seal.seal({ mayTake, principal, origin })
  }

  /** Throws unauthorized. Unknown claims of a newer release are ignored. */
  open(header: string): SealedCaller {
    const { mayTake, principal, origin } = this.#seal.open(header)
    return {
      // A member made it.
      principal: principalOf(principal as Principal | null),
      mayTake: mayTake === true,
      origin: typeof origin === 'string' ? origin : undefined,
    }
  }
}

/** Written by a member. A role that this release does not know gives no rights. */
function principalOf(value: Principal | null): Principal | null {
  if (value === null) return null
  const { tenant, name, role, limits, expiresAt } = value
  if (!ROLES.includes(role)) throw denied(`the role ${role} is not known here`)
  return { tenant, name, role, limits, expiresAt }
}
