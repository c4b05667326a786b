/**
 * Defines flags: name, kind, range, default and description. Commands declare theirs as objects by name; the settings
 * of `serve` (table.ts) are flags with more fields. A kind's range is given once, here: the parser (values.ts), the
 * schema of the configuration file and the help all use it. This module knows no particular flag.
 */
import { SAMPLING_ROWS, type SamplingName, type SamplingParameter } from '../sampling.ts'

export type Kind =
  | { readonly type: 'text' }
  /** A file or folder. In the configuration file, relative to that file's folder. */
  | { readonly type: 'path' }
  | { readonly type: 'switch' }
  | { readonly type: 'number' | 'integer'; readonly min: number; readonly max: number }
  | { readonly type: 'choice'; readonly of: readonly string[] }
  /** As a flag: items separated by commas. */
  | { readonly type: 'list'; readonly ofPaths?: boolean }
  | { readonly type: 'integers' }
  /** As a flag: NAME=PATH pairs. In the file: an object. */
  | { readonly type: 'paths' }

export interface Flag {
  readonly kind: Kind
  readonly description: string
  /** As text; switches are off by default. Absent: none, or one that depends on the machine (see the description). */
  readonly default?: string
  /** Placeholder of the value in help. */
  readonly hint?: string
  /** A one-letter form. */
  readonly short?: string
  /** The command does not run without it. */
  readonly isRequired?: boolean
  /** `--no-NAME` is accepted although the flag takes a value; it means "none". */
  readonly isDeniable?: boolean
  /** Heading in help. */
  readonly group?: string
  /** Settings only: `skein config check` does not show the value. */
  readonly isSecret?: boolean
  /** Settings only: settings that it overrides when it comes from a stronger source. "models" are those of the file. */
  readonly silences?: readonly string[]
  /** Settings only: it is neither a field of the configuration file nor a variable. */
  readonly isFlagOnly?: boolean
}

/** A positional argument. */
interface Word {
  readonly description: string
  readonly hint?: string
  readonly isRequired?: boolean
  /** It takes all remaining arguments. */
  readonly isMany?: boolean
}

export type Flags = Readonly<Record<string, Flag>>
export type Words = Readonly<Record<string, Word>>

type More = Omit<Flag, 'kind' | 'description'>

const flagOf =
  <K extends Kind>(kind: K) =>
  // A flag declared without `more` has no further fields.
  <const M extends More = Record<never, never>>(description: string, more?: M) =>
    ({ kind, description, ...more }) as { readonly kind: K; readonly description: string } & NoInfer<M>

export const text = flagOf({ type: 'text' })
export const path = flagOf({ type: 'path' })
export const toggle = flagOf({ type: 'switch' })
export const list = flagOf({ type: 'list' })
export const pathList = flagOf({ type: 'list', ofPaths: true })
export const integers = flagOf({ type: 'integers' })
export const paths = flagOf({ type: 'paths' })
export const whole = (min: number, max: number) => flagOf({ type: 'integer', min, max })
export const number = (min: number, max: number) => flagOf({ type: 'number', min, max })
export const choice = <const C extends string>(of: readonly C[]) => flagOf({ type: 'choice', of })

const ROWS = SAMPLING_ROWS.filter(([, { flag }]) => flag !== undefined)

export const MAX_TOKENS = whole(1, 1_000_000)('Maximum tokens of an answer (default 512)', { group: 'Sampling' })

export const SAMPLING_FLAGS: Flags = Object.fromEntries(
  ROWS.map(([, row]) => {
    const flag = row.int === undefined ? number : whole
    const about = `${row.flag} (default ${row.ownDefault ?? row.off})`
    return [nameOf(row), flag(row.min, row.max)(about, { group: 'Sampling' })]
  }),
)

/** The values that were given, by the names of their rows in SAMPLING_ROWS. */
export function samplingOptions(args: Readonly<Record<string, unknown>>): Partial<Record<SamplingName, number>> {
  const given = ROWS.map(([name, row]) => [name, args[nameOf(row)]] as const)
  // Flags of the kinds number and integer have numbers as values.
  return Object.fromEntries(given.filter(([, value]) => value !== undefined)) as Partial<Record<SamplingName, number>>
}

function nameOf({ fields }: SamplingParameter): string {
  return fields[0]!.replaceAll('_', '-')
}
