/**
 * Options that callers of the library give, who may have no compiler that knows their types: unknown ones are refused, and
 * values that are not what they have to be.
 */
import { invalid } from '../errors.ts'
import { closest } from './closest.ts'

/** What was expected where a value is not it. */
export type Check = (value: unknown) => string | null

export const anything: Check = () => null
export const text: Check = (value) => (typeof value === 'string' ? null : 'a string')
export const flag: Check = (value) => (typeof value === 'boolean' ? null : 'true or false')
export const list: Check = (value) => (Array.isArray(value) ? null : 'a list')
export const object: Check = (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? null : 'an object'

export function oneOf(...known: readonly string[]): Check {
  return (value) => (known.includes(value as string) ? null : `one of ${known.join(', ')}`)
}

export function whole(least: number): Check {
  return (value) =>
    Number.isSafeInteger(value) && (value as number) >= least ? null : `a whole number of at least ${least}`
}

export function number(least: number, most: number, isWhole = false): Check {
  return (value) =>
    typeof value === 'number' && value >= least && value <= most && !(isWhole && !Number.isInteger(value))
      ? null
      : `a ${isWhole ? 'whole ' : ''}number from ${least} to ${most}`
}

/** A list whose elements are all so. */
export function listOf(each: Check): Check {
  return (value) => {
    if (!Array.isArray(value)) return 'a list'
    const problem = value.map(each).find((expected) => expected !== null)
    return problem === undefined ? null : `a list of which each is ${problem}`
  }
}

/** `at`: before the name of each, such as "tools[0]."; absent options and those that are undefined are left out. */
export function checkGiven(
  given: object,
  checks: Readonly<Record<string, Check>>,
  at = '',
  required: readonly string[] = [],
): void {
  const wrong = object(given)
  if (wrong !== null) throw invalid(at.replace(/\.$/, '') || 'options', `expected ${wrong}`)
  for (const name of required) if (!(name in given)) throw invalid(`${at}${name}`, 'missing; it is required')
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined) continue
    const check = Object.hasOwn(checks, name) ? checks[name]! : null
    if (check === null) {
      const meant = closest(name, Object.keys(checks))
      throw invalid(`${at}${name}`, `there is no such option${meant === null ? '' : `; did you mean ${at}${meant}?`}`)
    }
    const expected = check(value)
    if (expected !== null) throw invalid(`${at}${name}`, `expected ${expected}`)
  }
}

/** Without the fields that are null or undefined. */
export function onlyGiven<T extends object>(fields: T): { [K in keyof T]?: NonNullable<T[K]> } {
  const entries = Object.entries(fields).filter(([, value]) => value != null)
  // The remaining fields are not null.
  return Object.fromEntries(entries) as { [K in keyof T]?: NonNullable<T[K]> }
}
