/**
 * One setting of a server: a flag ("max-waiting"), a variable ("SKEIN_MAX_WAITING") and a field of the configuration
 * file ("maxWaiting"). The flag's name gives the other two. A value from any source is first turned into the text that
 * the flag would have, so that one parser reads all.
 */
import { resolve } from 'node:path'
import { SkeinError } from '../errors.ts'
import { type TSchema, Type } from '../files/schema-types.ts'
import type { Flag } from './flags.ts'
import { SETTINGS } from './table.ts'
import type { Raw } from './values.ts'

export interface Setting extends Flag {
  readonly flag: string
}

/** Settings that are also fields and variables. */
export const SETTING_ROWS: readonly Setting[] = Object.entries<Flag>(SETTINGS)
  .filter(([, { isFlagOnly }]) => isFlagOnly !== true)
  .map(([flag, row]) => ({ flag, ...row }))

export function fieldOf(flag: string): string {
  return flag.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())
}

export function variableOf(flag: string): string {
  return `SKEIN_${flag.toUpperCase().replaceAll('-', '_')}`
}

/** SKEIN_* variables that nothing reads; usually typos. */
export function unknownVariables(environment: Readonly<Record<string, string | undefined>>): string[] {
  const known = new Set([...SETTING_ROWS.map(({ flag }) => variableOf(flag)), ...OTHER_VARIABLES])
  return Object.keys(environment).filter((name) => /^SKEIN_/.test(name) && !known.has(name))
}

/** Variables for the configuration file and the model, which are no flags, and those that are read outside `serve`. */
const OTHER_VARIABLES = ['SKEIN_CONFIG', 'SKEIN_MODEL', 'SKEIN_DEBUG', 'SKEIN_ISA', 'SKEIN_SIMULATE_CARD']

/** No comma, because commas separate the items of a flag. */
const Item = Type.String({ pattern: '^[^,]+$' })

export function schemaOf({ kind, description, default: given }: Setting): TSchema {
  const about = { description: given === undefined ? description : `${description} [${given}]` }
  switch (kind.type) {
    case 'text':
    case 'path':
      return Type.String({ minLength: 1, ...about })
    case 'switch':
      return Type.Boolean(about)
    case 'number':
      return Type.Number({ minimum: kind.min, maximum: kind.max, ...about })
    case 'integer':
      return Type.Integer({ minimum: kind.min, maximum: kind.max, ...about })
    case 'choice':
      return Type.Enum([...kind.of], about)
    case 'list':
      return Type.Array(Item, about)
    case 'integers':
      return Type.Array(Type.Integer({ minimum: 0 }), about)
    case 'paths':
      return Type.Record(Type.String({ pattern: '^[^,=]+$' }), Item, about)
    default:
      return kind satisfies never
  }
}

/** Converts a value of the file that has passed the schema. */
export function fromFile({ kind }: Setting, value: unknown, folder: string): Raw {
  switch (kind.type) {
    case 'switch':
      return value === true
    case 'path':
      return resolve(folder, String(value))
    case 'list':
      return listOf(value, (item) => (kind.ofPaths === true ? resolve(folder, item) : item))
    case 'integers':
      return listOf(value, (item) => item)
    case 'paths':
      return Object.entries(value as Readonly<Record<string, string>>)
        .map(([name, path]) => `${name}=${resolve(folder, path)}`)
        .join(',')
    default:
      return String(value)
  }
}

/** The schema has checked that it is a list. */
function listOf(value: unknown, each: (item: string) => string): string {
  return (value as readonly unknown[]).map((item) => each(String(item))).join(',')
}

export function fromVariable({ flag, kind }: Setting, value: string): Raw {
  if (kind.type !== 'switch') return value
  if (/^(1|true|yes)$/i.test(value)) return true
  if (/^(0|false|no)$/i.test(value)) return false
  const name = variableOf(flag)
  throw new SkeinError('invalid_request', `${name} is "${value}"; expected 1 or 0`, { param: flag })
}
