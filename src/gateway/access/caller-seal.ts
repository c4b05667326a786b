/**
 * Tells one member of a cluster who the caller is. A node trusts what gateways and nodes seal, and no header of a
 * client.
 */
import { ROLES } from '../../api/route.ts'
import { denied, MemberSeal } from '../../cluster/member-seal.ts'
import type { Principal } from './auth.ts'

export interface SealedCaller {
  /** Null: a member speaks for itself, about states and sessions of anybody. */
  readonly principal: Principal | null
  /** The session of the request may be taken from the node that has it. */
  readonly mayTake: boolean
  /** Names a request that may be asked again. */
  readonly origin?: string | undefined
}

export class CallerSeal {
  readonly #seal: MemberSeal

  /** `secret`: the cluster's own, or what the operator gave instead. */
  constructor(secret: Uint8Array | string, now?: () => number) {
    this.#seal = new MemberSeal(secret, now)
  }

  seal({ principal, mayTake, origin }: SealedCaller): string {
    return this.#seal.seal({ mayTake, principal, origin })
  }

  /** Throws unauthorized. Claims of a newer release that are not known here are left out. */
  open(header: string): SealedCaller {
    const { mayTake, principal, origin } = this.#seal.open(header)
    return {
      // A member has made it.
      principal: principalOf(principal as Principal | null),
      mayTake: mayTake === true,
      origin: typeof origin === 'string' ? origin : undefined,
    }
  }
}

/** Made by a member; a role that this release does not know is none. */
function principalOf(value: Principal | null): Principal | null {
  if (value === null) return null
  const { tenant, name, role, limits, expiresAt } = value
  if (!ROLES.includes(role)) throw denied(`the role ${role} is not known here`)
  return { tenant, name, role, limits, expiresAt }
}
