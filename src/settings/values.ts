/**
 * Parses the texts of flags, variables and files by the kind of their flag. A wrong value is refused with the name of
 * the flag.
 */
import { basename } from 'node:path'
import { SkeinError } from '../errors.ts'
import type { Flag, Flags, Kind } from './flags.ts'

/** As it was given: a boolean for a switch, else text. */
export type Raw = string | boolean
export type RawValues = Readonly<Record<string, Raw | undefined>>

interface NamedPath {
  readonly name: string
  readonly path: string
}

type ValueOf<K extends Kind> = K extends { readonly type: 'choice'; readonly of: readonly (infer C)[] }
  ? C
  : {
      text: string
      path: string
      switch: boolean
      number: number
      integer: number
      choice: string
      list: readonly string[]
      integers: readonly number[]
      paths: readonly NamedPath[]
    }[K['type']]

/** Values by flag; undefined if the flag was not given and has no default. */
export type Values<F extends Flags> = {
  readonly [N in keyof F]: F[N] extends
    | { readonly default: string }
    | { readonly isRequired: true }
    | { readonly kind: { readonly type: 'switch' } }
    ? ValueOf<F[N]['kind']>
    : ValueOf<F[N]['kind']> | undefined
}

export function parseValues<F extends Flags>(flags: F, raw: RawValues): Values<F> {
  const entries = Object.entries(flags).map(([name, flag]) => [name, flagValue(name, flag, raw[name])])
  // One entry per flag; parse() returns the type that ValueOf gives for its kind.
  return Object.fromEntries(entries) as Values<F>
}

/** Empty text counts as not given. */
function flagValue(name: string, flag: Flag, given: Raw | undefined): unknown {
  if (flag.kind.type === 'switch') return given === true
  const raw = given === undefined || given === '' ? flag.default : given
  return raw === undefined || raw === false ? undefined : parse(name, flag.kind, String(raw))
}

function parse(name: string, kind: Kind, given: string): unknown {
  switch (kind.type) {
    case 'text':
    case 'path':
    case 'switch':
      return given
    case 'number':
    case 'integer':
      return parseNumber(name, kind, given)
    case 'choice':
      if (kind.of.includes(given)) return given
      throw refusal(name, `one of ${kind.of.join(', ')}, not "${given}"`)
    case 'list':
      return given.split(',').map((part) => part.trim())
    case 'integers':
      return given.split(',').map((part) => parseIndex(name, part, given))
    case 'paths':
      return given.split(',').map((part) => parsePath(name, part))
    default:
      return kind satisfies never
  }
}

function parseNumber(name: string, { type, min, max }: Kind & { readonly type: 'number' | 'integer' }, given: string) {
  const value = Number(given)
  if (!(value >= min && value <= max)) throw refusal(name, `a number from ${min} to ${max}, not "${given}"`)
  if (type === 'integer' && !Number.isInteger(value)) throw refusal(name, `a whole number, not ${value}`)
  return value
}

function parseIndex(name: string, part: string, given: string): number {
  const value = Number(part)
  if (part.trim() !== '' && Number.isInteger(value) && value >= 0) return value
  throw refusal(name, `whole numbers with commas between, not "${given}"`)
}

/** "poet=poet.pth", or "tale.pth", whose name is then "tale". */
function parsePath(flag: string, part: string): NamedPath {
  const [, name, path = ''] = /^(?:([^=]*)=)?(.*)$/s.exec(part) ?? []
  if (path === '' || name === '') throw refusal(flag, `NAME=FILE pairs, not "${part}"`)
  return { name: name ?? basename(path).replace(/\.[^.]*$/, ''), path }
}

const DAY = 86_400_000
const UNITS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: DAY / 24, d: DAY, w: 7 * DAY }

/** "90s", "15m", "1h", "30d", "2w" in milliseconds. */
export function milliseconds(name: string, given: string | undefined): number | undefined {
  if (given === undefined) return undefined
  const [, count, unit] = /^(\d{1,9})([smhdw])$/.exec(given) ?? []
  if (count !== undefined && unit !== undefined) return Number(count) * UNITS[unit]!
  throw refusal(name, 'a time such as 90s, 15m, 1h, 30d or 2w')
}

export function refusal(name: string, expected: string): SkeinError {
  return new SkeinError('invalid_request', `--${name} takes ${expected}`, { param: name })
}
