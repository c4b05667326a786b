/**
 * Who is calling, as one member of a cluster says to another: a principal in a header, sealed with the cluster's key. A node
 * trusts what gateways and nodes seal, and no header of a client. Whoever knows the key is a member.
 */
import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto'
import { ROLES } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'
import type { Principal } from './auth.ts'

export const CALLER_HEADER = 'x-skein-caller'

export interface SealedCaller {
  /** Null: a member speaks for itself, about states and sessions of anybody. */
  readonly principal: Principal | null
  /** The session of the request may be taken from the node that has it. */
  readonly mayTake: boolean
}

/** Clocks of members may differ by so much. */
const MAX_AGE_MS = 120_000

export class CallerSeal {
  readonly #key: Uint8Array
  readonly #now: () => number

  /** `secret`: the cluster's own, or what the operator gave instead. */
  constructor(secret: Uint8Array | string, now: () => number = Date.now) {
    this.#key = new Uint8Array(hkdfSync('sha256', secret, '', 'skein members', 32))
    this.#now = now
  }

  seal({ principal, mayTake }: SealedCaller): string {
    const claims = JSON.stringify({ at: this.#now(), mayTake, principal })
    const body = Buffer.from(claims).toString('base64url')
    return `${body}.${this.#codeOf(body).toString('base64url')}`
  }

  /** Throws unauthorized. Claims of a newer release that are not known here are left out. */
  open(header: string): SealedCaller {
    const [body = '', code = ''] = header.split('.')
    const given = Buffer.from(code, 'base64url')
    const right = this.#codeOf(body)
    if (given.length !== right.length || !timingSafeEqual(given, right))
      throw denied('it is sealed with another key; all members need the same --cluster-key')
    const { at, mayTake, principal } = JSON.parse(Buffer.from(body, 'base64url').toString())
    if (typeof at !== 'number' || Math.abs(this.#now() - at) > MAX_AGE_MS)
      throw denied('its time is not now; set the clocks of all machines (skein doctor --cluster)')
    return { principal: principalOf(principal), mayTake: mayTake === true }
  }

  #codeOf(body: string): Buffer {
    return createHmac('sha256', this.#key).update(body).digest()
  }
}

/** Made by a member; a role that this release does not know is none. */
function principalOf(value: Principal | null): Principal | null {
  if (value === null) return null
  const { tenant, name, role, limits, expiresAt } = value
  if (!ROLES.includes(role)) throw denied(`the role ${role} is not known here`)
  return { tenant, name, role, limits, expiresAt }
}

function denied(why: string): SkeinError {
  return new SkeinError('unauthorized', `the header ${CALLER_HEADER} is refused: ${why}`)
}
