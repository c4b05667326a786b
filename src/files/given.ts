/**
 * Options that callers of the library give, who may have no compiler that knows their types: unknown ones are refused, and
 * values that are not what they have to be.
 */
import { SkeinError } from '../errors.ts'
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

export function number(least: number, most: number): Check {
  return (value) =>
    typeof value === 'number' && value >= least && value <= most ? null : `a number from ${least} to ${most}`
}

/** `at`: before the name of each, such as "tools[0]."; absent options and those that are undefined are left out. */
export function checkOptions(given: object, checks: Readonly<Record<string, Check>>, at = ''): void {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined) continue
    const check = Object.hasOwn(checks, name) ? checks[name]! : null
    if (check === null) {
      const meant = closest(name, Object.keys(checks))
      throw wrong(`${at}${name}`, `there is no such option${meant === null ? '' : `; did you mean ${at}${meant}?`}`)
    }
    const expected = check(value)
    if (expected !== null) throw wrong(`${at}${name}`, `expected ${expected}`)
  }
}

export function wrong(param: string, message: string): SkeinError {
  return new SkeinError('invalid_request', `${param}: ${message}`, { param })
}
