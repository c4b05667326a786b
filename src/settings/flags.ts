/**
 * What a flag is: the word, its kind and range, its default and how it is explained. Commands declare theirs as objects by
 * name; the settings of `serve` (table.ts) are flags with more. A kind's range is said here once: readers (values.ts), the
 * schema of the configuration file and help follow. It knows no particular flag.
 */
import { SAMPLING_ROWS, type SamplingName, type SamplingParameter } from '../sampling.ts'

export type Kind =
  | { readonly type: 'text' }
  /** A file or folder; in the configuration file it is relative to that file's folder. */
  | { readonly type: 'path' }
  | { readonly type: 'switch' }
  | { readonly type: 'number' | 'integer'; readonly min: number; readonly max: number }
  | { readonly type: 'choice'; readonly of: readonly string[] }
  /** With commas between them as a flag. */
  | { readonly type: 'list'; readonly ofPaths?: boolean }
  | { readonly type: 'integers' }
  /** NAME=PATH as a flag, an object in the file. */
  | { readonly type: 'paths' }

export interface Flag {
  readonly kind: Kind
  readonly description: string
  /** As text; a switch is off. Absent: none, or one that depends on the machine and is told in the description. */
  readonly default?: string
  /** What stands for its value in help. */
  readonly hint?: string
  /** One letter. */
  readonly short?: string
  /** The command refuses to run without it. */
  readonly isRequired?: boolean
  /** `--no-NAME` is taken for a flag with a value, too: none at all. */
  readonly isDeniable?: boolean
  /** Heading in help. */
  readonly group?: string
  /** Of a setting: not shown by `skein config check`. */
  readonly isSecret?: boolean
  /** Of a setting: others that have no effect where this one comes from a stronger source. "models" are those of the file. */
  readonly silences?: readonly string[]
  /** Of a setting: it is no field of the configuration file, and no variable. */
  readonly isFlagOnly?: boolean
}

/** A word that is no flag. */
interface Word {
  readonly description: string
  readonly hint?: string
  readonly isRequired?: boolean
  /** The rest of the words. */
  readonly isMany?: boolean
}

export type Flags = Readonly<Record<string, Flag>>
export type Words = Readonly<Record<string, Word>>

type More = Omit<Flag, 'kind' | 'description'>

const flagOf =
  <K extends Kind>(kind: K) =>
  // A flag of which nothing more is said has no more fields.
  <const M extends More = Record<never, never>>(description: string, more?: M) =>
    ({ kind, description, ...more }) as {
      readonly kind: K
      readonly description: string
    } & NoInfer<M>

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

export const MAX_TOKENS = whole(1, 1_000_000)('Most tokens of an answer (default 512)', {
  group: 'Sampling',
})

export const SAMPLING_FLAGS: Flags = Object.fromEntries(
  ROWS.map(([, row]) => {
    const flag = row.int === undefined ? number : whole
    const about = `${row.flag} (default ${row.ownDefault ?? row.off})`
    return [nameOf(row), flag(row.min, row.max)(about, { group: 'Sampling' })]
  }),
)

/** The values that were given, by the names of the rows. */
export function samplingOptions(args: Readonly<Record<string, unknown>>): Partial<Record<SamplingName, number>> {
  const given = ROWS.map(([name, row]) => [name, args[nameOf(row)]] as const)
  // Flags of kinds number and integer have numbers.
  return Object.fromEntries(given.filter(([, value]) => value !== undefined)) as Partial<Record<SamplingName, number>>
}

function nameOf({ fields }: SamplingParameter): string {
  return fields[0]!.replaceAll('_', '-')
}
