/** Checks regular expressions for answers: JavaScript's, without lookaround and back references. */
import { SkeinError } from '../errors.ts'

const MAX_LENGTH = 4096
const MAX_REPEATS = 1000
/** Open groups: the grammar engine recurses into each, and 1,000 take it longer than a compilation may. */
const MAX_NESTED = 64

/** Throws invalid_request; `param` is the field of the pattern. */
export function checkPattern(pattern: string, param: string): void {
  if (pattern === '' || pattern.length > MAX_LENGTH)
    throw wrong(param, `expected a regular expression of 1 to ${MAX_LENGTH} characters`)
  try {
    new RegExp(pattern, 'u')
  } catch (error) {
    throw wrong(param, error instanceof Error ? error.message : 'not a regular expression')
  }
  const plain = pattern.replaceAll(/\\[\s\S]/g, (pair) => (/[1-9kbBpPc]/.test(pair[1]!) ? '\u0000' : '_'))
  if (plain.includes('\u0000')) throw wrong(param, 'back references, word boundaries, \\c and \\p are not supported')
  const outside = plain.replaceAll(/\[[^\]]*\]/g, '_')
  if (/\(\?(?!:)/.test(outside)) throw wrong(param, 'groups may only be (…) and (?:…)')
  if (depthOf(outside) > MAX_NESTED) throw wrong(param, `more than ${MAX_NESTED} groups are open at once`)
  // An answer always matches from start to end anyway.
  if (/(?<=.)\^|\$(?=.)/s.test(outside)) throw wrong(param, '^ and $ may only be at the ends')
  for (const [, least, most] of outside.matchAll(/\{(\d+)(?:,(\d*))?\}/g)) {
    if (Math.max(Number(least), Number(most ?? 0)) > MAX_REPEATS)
      throw wrong(param, `repeats more than ${MAX_REPEATS} times`)
  }
}

function depthOf(text: string): number {
  let [depth, most] = [0, 0]
  for (const letter of text) {
    if (letter === '(') most = Math.max(most, ++depth)
    else if (letter === ')') depth--
  }
  return most
}

/** `at`: the place in the field; the error is of the field. */
export function wrong(at: string, message: string): SkeinError {
  return new SkeinError('invalid_request', `${at}: ${message}`, { param: at.split('.')[0]! })
}
