/** `skein keys`: edits the named keys of a server in their file. A running server notices within seconds. */
import { existsSync } from 'node:fs'
import {
  addKey,
  changeKey,
  type Issued,
  isExpired,
  KEY_PRIORITIES,
  KEY_ROLES,
  KEY_TIMEOUTS,
  type KeyLimits,
  type KeyRecord,
  NO_LIMITS,
  revokeKey,
  rotateKey,
} from '../gateway/access/keys.ts'
import { changeKeys, readKeys } from '../gateway/access/keys-file.ts'
import { wireKey } from '../gateway/pages/keys-api.ts'
import { bytesOf, keyFilePath } from '../settings/engine-choice.ts'
import { choice, number, path, text, toggle, whole } from '../settings/flags.ts'
import { configPath, NO_COMMAND_LINE, settleServe, valuesOf } from '../settings/serve-settings.ts'
import { SETTINGS } from '../settings/table.ts'
import { milliseconds, type Values } from '../settings/values.ts'
import { defineCommand, defineCommands } from './terminal/command.ts'
import { formatBytes, printJson, printTable } from './terminal/output.ts'

const FILE_FLAGS = {
  keys: SETTINGS.keys,
  'data-dir': path('Data folder of the server', { hint: 'DIR' }),
  json: toggle('One JSON object'),
}

const NAME = { name: { description: 'Name of the key', isRequired: true } } as const

const MAX = Number.MAX_SAFE_INTEGER
/** Bytes per unit of `--stored-mb` and other flags that end in "-mb". */
const MIB = 2 ** 20

/** Until when a key is valid, and what it may use. With "--no-" before its name each means none. */
const TERMS = {
  rpm: whole(1, MAX)('Requests per minute', { isDeniable: true }),
  tpm: whole(1, MAX)('Tokens per minute, of prompts and answers', { isDeniable: true }),
  rows: whole(1, MAX)('Answers generated in parallel', { isDeniable: true }),
  'stored-mb': whole(1, 2 ** 30)('MiB of session states', { isDeniable: true }),
  share: number(0.01, 100)('Share of a busy machine, relative to 1 for other keys', { isDeniable: true }),
  priority: whole(...KEY_PRIORITIES)(
    'Priority of its requests, 0 for other keys: higher ones go first and preempt lower ones',
    { isDeniable: true },
  ),
  timeout: number(...KEY_TIMEOUTS)('Seconds that a request may take before it is aborted', { isDeniable: true }),
  expires: text('Expires after this time: 12h, 30d', { hint: 'TIME', isDeniable: true }),
}

const LAST_KEY = 'note: no keys are left; running servers still require one, but a server started now does not'

const FIRST_KEY = 'note: this is the first key; servers that use this file require a key from now on'

const add = defineCommand({
  description: 'Create a key and print it once; only its hash is stored',
  examples: [['skein keys add ada --role operator --expires 30d', 'a key for the dashboard, valid for a month']],
  words: NAME,
  flags: {
    role: choice(KEY_ROLES)(`${KEY_ROLES.join(', ')}`, { default: 'user' }),
    ...TERMS,
    ...FILE_FLAGS,
  },
  async run({ args, given }) {
    const now = Date.now()
    const limits = { ...NO_LIMITS, ...limitsOf(args, given) }
    const key = { name: args.name, role: args.role, expiresAt: endOf(args, now), limits }
    const path = ownFile(args)
    printIssued(await changeKeys(path, (keys) => addKey(keys, key, now)), path, args.json)
  },
})

const change = defineCommand({
  description: 'Change the role, end or limits of a key; it keeps its secret and its states',
  examples: [
    ['skein keys change ada --rpm 120 --expires 30d', 'valid for 30 days from now'],
    ['skein keys change ada --no-rpm --no-expires', 'without this limit, and for good'],
  ],
  words: NAME,
  flags: { role: choice(KEY_ROLES)(`${KEY_ROLES.join(', ')}`), ...TERMS, ...FILE_FLAGS },
  async run({ args, given }) {
    const terms = {
      ...(args.role === undefined ? {} : { role: args.role }),
      ...(given.has('expires') ? { expiresAt: endOf(args, Date.now()) } : {}),
      limits: limitsOf(args, given),
    }
    const path = ownFile(args)
    const { key } = await changeKeys(path, (keys) => changeKey(keys, args.name, terms))
    if (args.json) printJson({ file: path, ...wireKey(key) })
    else printTable([COLUMNS, rowOf(key)])
  },
})

/** Null: never. */
function endOf({ expires }: Values<typeof TERMS>, now: number): number | null {
  const lifeMs = milliseconds('expires', expires)
  return lifeMs === undefined ? null : now + lifeMs
}

/** Those that are given; null: without this limit. */
function limitsOf(args: Values<typeof TERMS>, given: ReadonlyMap<string, unknown>): Partial<KeyLimits> {
  const values = {
    rpm: { requestsPerMinute: args.rpm ?? null },
    tpm: { tokensPerMinute: args.tpm ?? null },
    rows: { rows: args.rows ?? null },
    'stored-mb': { storedBytes: bytesOf(args['stored-mb']) ?? null },
    share: { share: args.share ?? null },
    priority: { priority: args.priority ?? null },
    timeout: { timeoutSeconds: args.timeout ?? null },
  }
  return Object.assign({}, ...Object.entries(values).flatMap(([flag, value]) => (given.has(flag) ? [value] : [])))
}

const rotate = defineCommand({
  description: 'Give a key a new secret and print it; it keeps its states',
  examples: [['skein keys rotate ada --grace 1h', 'the old one works for another hour']],
  words: NAME,
  flags: {
    grace: text('Time that the old secret keeps working: 15m, 1h (default: none)', { hint: 'TIME' }),
    ...FILE_FLAGS,
  },
  async run({ args }) {
    const graceMs = milliseconds('grace', args.grace) ?? 0
    const path = ownFile(args)
    const issued = await changeKeys(path, (keys) => rotateKey(keys, args.name, graceMs, Date.now()))
    printIssued(issued, path, args.json)
  },
})

const revoke = defineCommand({
  description: 'Revoke a key; its running requests finish and its states stay',
  examples: [['skein keys revoke ada', 'servers refuse it within seconds']],
  words: NAME,
  flags: FILE_FLAGS,
  async run({ args }) {
    const path = ownFile(args)
    const left = await changeKeys(path, (keys) => ({ keys: revokeKey(keys, args.name) }))
    if (left.keys.length === 0) process.stderr.write(`${LAST_KEY}\n`)
    if (args.json) printJson({ file: path, name: args.name, revoked: true })
    else process.stdout.write(`revoked ${args.name}; servers that use ${path} refuse it in seconds\n`)
  },
})

const list = defineCommand({
  description: 'Show the keys, without their secrets',
  examples: [['skein keys list', 'names, roles, expiry and limits']],
  flags: FILE_FLAGS,
  run({ args }) {
    const path = ownFile(args)
    const keys = readKeys(path)
    if (args.json) printJson({ file: path, keys: keys.map(wireKey) })
    else if (keys.length === 0) process.stdout.write(`no keys in ${path}\n`)
    else printTable([COLUMNS, ...keys.map(rowOf)])
  },
})

/** The file that a server started here would use; its configuration may name it. */
function ownFile(args: Values<typeof FILE_FLAGS>): string {
  if (args.keys !== undefined || args['data-dir'] !== undefined) return keyFilePath(args)
  const path = configPath(undefined, existsSync)
  return keyFilePath(valuesOf(settleServe(NO_COMMAND_LINE, path), ['keys', 'data-dir']))
}

export const keys = defineCommands({ add, list, change, rotate, revoke }, [
  ['skein keys add alice --rpm 60', 'a key with a limit; it is shown once'],
  ['skein keys list', 'who has a key, and until when'],
])

/** Prints only the secret on stdout, so that a script can read it. */
function printIssued({ keys, key, secret }: Issued, path: string, asJson: boolean | undefined): void {
  if (asJson) {
    printJson({ file: path, ...wireKey(key), secret })
    return
  }
  const note = missingRole(keys)
  if (keys.length === 1) process.stderr.write(`${FIRST_KEY}\n`)
  if (note !== null) process.stderr.write(`note: ${note}\n`)
  process.stdout.write(`${secret}\n`)
  process.stderr.write(`key of ${key.name} (${key.role}); shown once, only its hash is in ${path}\n`)
}

/** Names a role that no key has yet. This command can add such a key at any time: it needs the file, not a key. */
function missingRole(keys: readonly KeyRecord[]): string | null {
  const roles = new Set(keys.map(({ role }) => role))
  if (roles.has('admin')) return null
  return roles.has('operator')
    ? 'no key is an admin yet; only one can manage keys over HTTP (--role admin)'
    : 'no key is an operator yet; the dashboard and /api need one (--role operator, or admin to manage keys too)'
}

const COLUMNS = ['name', 'role', 'made', 'ends', 'limits']

function rowOf(key: KeyRecord): string[] {
  const { name, role, createdAt, expiresAt, limits } = key
  const said = [
    limits.requestsPerMinute === null ? '' : `${limits.requestsPerMinute} requests/min`,
    limits.tokensPerMinute === null ? '' : `${limits.tokensPerMinute} tokens/min`,
    limits.rows === null ? '' : `${limits.rows} rows`,
    limits.storedBytes === null
      ? ''
      : `${limits.storedBytes % MIB === 0 ? `${limits.storedBytes / MIB} MiB` : formatBytes(limits.storedBytes)} stored`,
    limits.share === null ? '' : `share ${limits.share}`,
    limits.priority == null ? '' : `priority ${limits.priority}`,
    limits.timeoutSeconds == null ? '' : `timeout ${limits.timeoutSeconds} s`,
  ].filter((part) => part !== '')
  const ends = expiresAt === null ? 'never' : day(expiresAt)
  const end = isExpired(key, Date.now()) ? `${ends} (over)` : ends
  return [name, role, day(createdAt), end, said.join(', ') || 'none']
}

function day(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}
