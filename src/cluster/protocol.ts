/**
 * What members of a cluster say to each other and write for each other, as a number. A release that changes it counts one up and
 * still takes what the number before it means; members that are further apart have nothing to do with each other.
 */
import { SkeinError } from '../errors.ts'

export const PROTOCOL = 1

/** As a member of any release has said it; those that said nothing are of the first. */
export function protocolOf(claims: Readonly<Record<string, unknown>>): number {
  return typeof claims.protocol === 'number' ? claims.protocol : 1
}

export function isNear(protocol: number, own = PROTOCOL): boolean {
  return Math.abs(protocol - own) <= 1
}

/** Throws conflict. `who`: for the message; `own`: what the member that looks says of itself. */
export function checkNear(protocol: number, who: string, own = PROTOCOL): void {
  if (isNear(protocol, own)) return
  throw new SkeinError(
    'conflict',
    `${who} speaks protocol ${protocol} of clusters and this release ${own}: releases may be one apart; bring the cluster to one between them first`,
  )
}
