/** Arguments about kept states: how many, where, for how long. docs/states.md explains them. */
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { ArgsDef } from 'citty'
import { SkeinError } from '../errors.ts'
import type { StateChoice } from '../load.ts'
import { integer, text } from './args.ts'

export const sessionArgs = {
  'data-dir': {
    type: 'string',
    description: 'Where sessions are stored (default: $XDG_DATA_HOME/skein, ~/.local/share/skein)',
    valueHint: 'DIR',
  },
  'no-store': { type: 'boolean', description: 'Keep sessions in memory only' },
  durable: { type: 'boolean', description: 'Report a turn of a session only when it is on disk' },
  'slot-states': {
    type: 'string',
    description: 'Sessions whose state stays on the device (default 16)',
  },
  'memory-states': { type: 'string', description: 'Session states in memory (default 32)' },
  'memory-states-mb': { type: 'string', description: 'The same in MB, instead of a number' },
  'prefix-cache-mb': {
    type: 'string',
    description:
      'Memory for prompt prefixes in MB; 0: none (default: 10 % of what is free, ≤ 2048)',
  },
  'max-sessions': { type: 'string', description: 'Sessions of one key (default 10000)' },
  'max-sessions-mb': { type: 'string', description: 'Their states in MB (default 65536)' },
  'max-turns': { type: 'string', description: 'Turns of a session that are kept (default 16)' },
  'session-ttl': {
    type: 'string',
    description: 'Seconds after its last turn that a session is kept (default: for ever)',
  },
} as const satisfies ArgsDef

type Given = { readonly [name: string]: unknown }

const MAX = Number.MAX_SAFE_INTEGER
const MB = 2 ** 20

/** For a server, which stores sessions unless told not to. */
export function stateChoice(args: Given): StateChoice {
  const megabytes = (name: string) => {
    const given = integer(args, name, 0, 2 ** 30)
    return given === undefined ? undefined : given * MB
  }
  return {
    dataDir: dataDir(args),
    durable: args.durable === true,
    slotStates: integer(args, 'slot-states', 0, 65_536),
    memoryStates: integer(args, 'memory-states', 0, MAX),
    memoryStateBytes: megabytes('memory-states-mb'),
    prefixCacheBytes: megabytes('prefix-cache-mb'),
    maxSessions: integer(args, 'max-sessions', 0, MAX),
    maxSessionBytes: megabytes('max-sessions-mb'),
    maxTurns: integer(args, 'max-turns', 1, MAX),
    sessionTtlSeconds: integer(args, 'session-ttl', 1, MAX),
  }
}

function dataDir(args: Given): string | undefined {
  const given = text(args, 'data-dir')
  // citty reads --no-store as the negation of a flag `store`.
  const isOff = args['no-store'] === true || args.store === false
  if (isOff && (given !== undefined || args.durable === true)) {
    const message = '--no-store stores nothing; drop --data-dir, --durable'
    throw new SkeinError('invalid_request', message, { param: 'no-store' })
  }
  if (isOff) return undefined
  return given ?? defaultDataDir()
}

export function defaultDataDir(): string {
  const { XDG_DATA_HOME } = process.env
  return join(XDG_DATA_HOME || join(homedir(), '.local/share'), 'skein')
}
