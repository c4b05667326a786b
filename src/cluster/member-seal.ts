/** Signs headers between members of a cluster with the cluster's key. Whoever knows the key is a member. */
import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto'
import { SkeinError } from '../errors.ts'
import { isNear, PROTOCOL, protocolOf } from './protocol.ts'

export const CALLER_HEADER = 'x-skein-caller'

/** Maximum difference of the members' clocks. */
const MAX_AGE_MS = 120_000

type Claims = Readonly<Record<string, unknown>>

export class MemberSeal {
  readonly #key: Uint8Array
  readonly #now: () => number

  /** `secret`: the cluster's own, or one given by the operator. */
  constructor(secret: Uint8Array | string, now: () => number = Date.now) {
    this.#key = new Uint8Array(hkdfSync('sha256', secret, '', 'skein members', 32))
    this.#now = now
  }

  seal(claims: Claims): string {
    const text = JSON.stringify({ at: this.#now(), protocol: PROTOCOL, ...claims })
    const body = Buffer.from(text).toString('base64url')
    return `${body}.${this.#codeOf(body).toString('base64url')}`
  }

  /** Throws unauthorized. */
  open(header: string): Claims {
    const [body = '', code = ''] = header.split('.')
    const given = Buffer.from(code, 'base64url')
    const right = this.#codeOf(body)
    if (given.length !== right.length || !timingSafeEqual(given, right))
      throw denied('it is signed with another key; all members need the same --cluster-key')
    // A member made it.
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as Claims
    const { at } = claims
    if (typeof at !== 'number' || Math.abs(this.#now() - at) > MAX_AGE_MS)
      throw denied(
        'its time is too far from the clock of this machine; synchronise the clocks of all machines (skein doctor --cluster)',
      )
    const protocol = protocolOf(claims)
    if (!isNear(protocol))
      throw denied(
        `its member speaks protocol ${protocol} of clusters, this one ${PROTOCOL}; releases may be one apart`,
      )
    return claims
  }

  #codeOf(body: string): Buffer {
    return createHmac('sha256', this.#key).update(body).digest()
  }
}

export function denied(why: string): SkeinError {
  return new SkeinError('unauthorized', `the header ${CALLER_HEADER} is refused: ${why}`)
}
