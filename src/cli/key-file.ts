/** Which file of named keys a command means, and durations as people write them. */
import { join } from 'node:path'
import type { ArgsDef } from 'citty'
import { SkeinError } from '../errors.ts'
import { text } from './args.ts'
import { defaultDataDir } from './session-args.ts'

export const keyFileArgs = {
  keys: {
    type: 'string',
    description: 'File of named keys (default: keys.json in the data folder; see skein keys)',
    valueHint: 'FILE',
  },
} as const satisfies ArgsDef

type Given = { readonly [name: string]: unknown }

/** In the data folder, so that a server and `skein keys` mean the same one without being told. */
export function keyFilePath(args: Given): string {
  return text(args, 'keys') ?? join(text(args, 'data-dir') ?? defaultDataDir(), 'keys.json')
}

const UNITS: Readonly<Record<string, number>> = {
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 7 * 86_400_000,
}

/** "90s", "15m", "1h", "30d", "2w" in milliseconds; undefined when the flag was not given. */
export function duration(args: Given, name: string): number | undefined {
  const given = text(args, name)
  if (given === undefined) return undefined
  const [, count, unit] = /^(\d{1,9})([smhdw])$/.exec(given) ?? []
  if (count !== undefined && unit !== undefined) return Number(count) * UNITS[unit]!
  throw new SkeinError(
    'invalid_request',
    `--${name} takes a time such as 90s, 15m, 1h, 30d or 2w`,
    {
      param: name,
    },
  )
}
