/** Sampling flags shared by `generate` and `chat`: one for each row of sampling.ts that has a description for it. */
import { SAMPLING_ROWS, type SamplingName, type SamplingParameter } from '../sampling.ts'
import { type Flags, number, whole } from './flags.ts'

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
export function samplingOptions(
  args: Readonly<Record<string, unknown>>,
): Partial<Record<SamplingName, number>> {
  const given = ROWS.map(([name, row]) => [name, args[nameOf(row)]] as const)
  // Flags of kinds number and integer have numbers.
  return Object.fromEntries(given.filter(([, value]) => value !== undefined)) as Partial<
    Record<SamplingName, number>
  >
}

function nameOf({ fields }: SamplingParameter): string {
  return fields[0]!.replaceAll('_', '-')
}
