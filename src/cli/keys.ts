/** `skein keys`: the named keys of a server, changed in their file. A server that runs notices within seconds. */
import { existsSync } from 'node:fs'
import { defineCommand } from 'citty'
import {
  addKey,
  type Issued,
  isExpired,
  KEY_ROLES,
  type KeyRecord,
  revokeKey,
  rotateKey,
} from '../gateway/keys.ts'
import { wireKey } from '../gateway/keys-api.ts'
import { changeKeys, readKeys } from '../gateway/keys-file.ts'
import { integer, number, oneOf, text } from './args.ts'
import { duration, keyFileArgs, keyFilePath } from './key-file.ts'
import { formatBytes, printJson, printTable } from './output.ts'
import { serveArgs } from './serve.ts'
import { configPath, settleServe } from './serve-settings.ts'

const fileArgs = {
  ...keyFileArgs,
  'data-dir': { type: 'string', description: 'Data folder of the server', valueHint: 'DIR' },
  json: { type: 'boolean', description: 'One JSON object' },
} as const

const nameArg = {
  type: 'positional',
  required: true,
  description: 'Name of the key',
  valueHint: 'NAME',
} as const

const MAX = Number.MAX_SAFE_INTEGER
/** Of `--stored-mb`, as of every flag that ends so. */
const MIB = 2 ** 20

const LAST_KEY =
  'note: no keys are left; running servers go on asking for one, a server started now is as without keys'

const FIRST_KEY =
  'note: this is the first key: a server that uses this file and was open to this machine asks for one from now on'

const add = defineCommand({
  meta: { name: 'add', description: 'Make a key and print it, once: only its hash is kept' },
  args: {
    name: nameArg,
    role: { type: 'string', description: `${KEY_ROLES.join(', ')} (default user)` },
    rpm: { type: 'string', description: 'Requests per minute' },
    tpm: { type: 'string', description: 'Tokens per minute, of prompts and answers' },
    rows: { type: 'string', description: 'Answers generated at once' },
    'stored-mb': { type: 'string', description: 'MiB of session states' },
    share: { type: 'string', description: 'Part of a busy machine, against 1 of other keys' },
    expires: { type: 'string', description: 'Ends after this time: 12h, 30d', valueHint: 'TIME' },
    ...fileArgs,
  },
  async run({ args }) {
    const lifeMs = duration(args, 'expires')
    const now = Date.now()
    const storedMb = integer(args, 'stored-mb', 1, 2 ** 30)
    const key = {
      name: args.name,
      role: oneOf(args, 'role', KEY_ROLES) ?? 'user',
      expiresAt: lifeMs === undefined ? null : now + lifeMs,
      limits: {
        requestsPerMinute: integer(args, 'rpm', 1, MAX) ?? null,
        tokensPerMinute: integer(args, 'tpm', 1, MAX) ?? null,
        rows: integer(args, 'rows', 1, MAX) ?? null,
        storedBytes: storedMb === undefined ? null : storedMb * MIB,
        share: number(args, 'share', 0.01, 100) ?? null,
      },
    }
    const path = ownFile(args)
    printIssued(await changeKeys(path, (keys) => addKey(keys, key, now)), path, args.json)
  },
})

const rotate = defineCommand({
  meta: {
    name: 'rotate',
    description: 'Give a key a new secret and print it; states stay its own',
  },
  args: {
    name: nameArg,
    grace: { type: 'string', description: 'The old one works this long: 15m, 1h (default: not)' },
    ...fileArgs,
  },
  async run({ args }) {
    const graceMs = duration(args, 'grace') ?? 0
    const path = ownFile(args)
    const issued = await changeKeys(path, (keys) => rotateKey(keys, args.name, graceMs, Date.now()))
    printIssued(issued, path, args.json)
  },
})

const revoke = defineCommand({
  meta: { name: 'revoke', description: 'End a key; what it runs is finished, its states stay' },
  args: { name: nameArg, ...fileArgs },
  async run({ args }) {
    const path = ownFile(args)
    const left = await changeKeys(path, (keys) => ({ keys: revokeKey(keys, args.name) }))
    if (left.keys.length === 0) process.stderr.write(`${LAST_KEY}\n`)
    if (args.json) printJson({ file: path, name: args.name, revoked: true })
    else
      process.stdout.write(`revoked ${args.name}; servers that use ${path} refuse it in seconds\n`)
  },
})

const list = defineCommand({
  meta: { name: 'list', description: 'Show the keys, without their secrets' },
  args: fileArgs,
  run({ args }) {
    const path = ownFile(args)
    const keys = readKeys(path)
    if (args.json) printJson({ file: path, keys: keys.map(wireKey) })
    else if (keys.length === 0) process.stdout.write(`no keys in ${path}\n`)
    else printTable([['name', 'role', 'made', 'ends', 'limits'], ...keys.map(rowOf)])
  },
})

/** The file that a server started here would use: its configuration may say where. */
function ownFile(args: { readonly [name: string]: unknown }): string {
  const isNamed = text(args, 'keys') !== undefined || text(args, 'data-dir') !== undefined
  if (isNamed) return keyFilePath(args)
  const settings = settleServe(serveArgs, { args: {}, words: [] }, configPath({}, existsSync))
  return keyFilePath(settings.args)
}

export const keys = defineCommand({
  meta: { name: 'keys', description: 'Named keys of a server: add, list, revoke, rotate' },
  subCommands: { add, list, revoke, rotate },
})

/** The secret alone on stdout, so that a script can take it. */
function printIssued(
  { keys, key, secret }: Issued,
  path: string,
  asJson: boolean | undefined,
): void {
  if (asJson) {
    printJson({ file: path, ...wireKey(key), secret })
    return
  }
  const note = missingRole(keys)
  if (keys.length === 1) process.stderr.write(`${FIRST_KEY}\n`)
  if (note !== null) process.stderr.write(`note: ${note}\n`)
  process.stdout.write(`${secret}\n`)
  process.stderr.write(
    `key of ${key.name} (${key.role}); shown once, only its hash is in ${path}\n`,
  )
}

/** What none of the keys opens. This command can make such a key at any time: it needs the file, not a key. */
function missingRole(keys: readonly KeyRecord[]): string | null {
  const roles = new Set(keys.map(({ role }) => role))
  if (roles.has('admin')) return null
  return roles.has('operator')
    ? 'no key is an admin yet; only one can manage keys over HTTP (--role admin)'
    : 'no key is an operator yet; the dashboard and /api need one (--role operator, or admin to manage keys too)'
}

function rowOf(key: KeyRecord): string[] {
  const { name, role, createdAt, expiresAt, limits } = key
  const said = [
    limits.requestsPerMinute === null ? '' : `${limits.requestsPerMinute} requests/min`,
    limits.tokensPerMinute === null ? '' : `${limits.tokensPerMinute} tokens/min`,
    limits.rows === null ? '' : `${limits.rows} rows`,
    limits.storedBytes === null ? '' : `${storedText(limits.storedBytes)} stored`,
    limits.share === null ? '' : `share ${limits.share}`,
  ].filter((part) => part !== '')
  const ends = expiresAt === null ? 'never' : day(expiresAt)
  const end = isExpired(key, Date.now()) ? `${ends} (over)` : ends
  return [name, role, day(createdAt), end, said.join(', ') || 'none']
}

/** As it was entered: by the flag, or in bytes over HTTP. */
function storedText(bytes: number): string {
  return bytes % MIB === 0 ? `${bytes / MIB} MiB` : formatBytes(bytes)
}

function day(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}
