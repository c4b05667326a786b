/**
 * The fields of a body that a route does not read. Each is harmless, or refused unless it says nothing, or unknown: then the
 * reply names it in the header `warnings`, with the field that was meant if one is close.
 */
import { notImplemented, type SkeinError } from '../errors.ts'
import { closest } from '../files/closest.ts'

export interface UnreadFields {
  /** They promise nothing about the reply. */
  readonly harmless: readonly string[]
  /** They would change the reply. Field → the values at which it means nothing. */
  readonly refused: Readonly<Record<string, readonly unknown[]>>
  readonly instead?: Readonly<Record<string, string>>
  /** Why a field has no effect, though the route may read it; null at values that have one, or want none. */
  readonly warned?: Readonly<Record<string, (value: unknown, given: object) => string | null>>
  /** How a field is refused, if not by notRead. */
  readonly refusal?: (param: string, instead: string | undefined) => SkeinError
}

interface FieldCheck extends UnreadFields {
  readonly read: readonly string[]
  /** The field that has these fields, with a dot; '' for the body. */
  readonly at?: string
}

export function checkFields(
  given: object,
  { read, harmless, refused, instead = {}, warned = {}, refusal = notRead, at = '' }: FieldCheck,
  warn: (message: string) => void,
): void {
  for (const [name, value] of Object.entries(given)) {
    if (value === null) continue
    if (Object.hasOwn(warned, name)) {
      const why = warned[name]!(value, given)
      if (why !== null) warn(`${at}${name} was ignored: ${why}`)
      continue
    }
    if (read.includes(name) || harmless.includes(name)) continue
    if (Object.hasOwn(refused, name)) {
      if (!refused[name]!.some((off) => isSame(off, value))) throw refusal(`${at}${name}`, instead[name])
      continue
    }
    const meant = closest(name, [...read, ...Object.keys({ ...refused, ...warned })])
    const hint = meant === null ? '' : `; did you mean ${at}${meant}?`
    warn(`${at}${name.slice(0, 60)} is no field of this route and was ignored${hint}`)
  }
}

export function notRead(param: string, instead = 'leave it out'): SkeinError {
  return notImplemented(param, `this route does not implement it, and ignoring it would change the reply; ${instead}`)
}

/** Neutral values are small: scalars, and lists or objects of at most one scalar. */
function isSame(a: unknown, b: unknown): boolean {
  return a === b || (typeof a === 'object' && JSON.stringify(a) === JSON.stringify(b))
}
