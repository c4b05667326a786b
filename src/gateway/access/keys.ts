/**
 * Named keys as data: what a key is, and how adding, changing, rotating or revoking one changes the list. Only the SHA-256 of a
 * secret is kept: secrets are 256 random bits, so a salt or a slow hash would add nothing. It knows no file
 * (keys-file.ts) and no HTTP (keys-api.ts, auth.ts).
 */
import { createHash, randomBytes } from 'node:crypto'
import { ROLES, type Role } from '../../api/route.ts'
import { LONGEST_TIMEOUT, PRIORITIES } from '../../api/schema.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { problemsOf } from '../../files/problems.ts'
import { type Static, type TSchema, Type } from '../../files/schema-types.ts'

/** Roles that a key can be given. */
export const KEY_ROLES: readonly Role[] = ROLES
export const KEY_PRIORITIES = PRIORITIES
export const KEY_TIMEOUTS = [0.001, LONGEST_TIMEOUT] as const

export const NO_LIMITS: KeyLimits = {
  requestsPerMinute: null,
  tokensPerMinute: null,
  rows: null,
  storedBytes: null,
  share: null,
}

export const KEY_NAME = { pattern: '^[A-Za-z0-9._-]{1,64}$', means: '1 to 64 of A-Za-z0-9._-' }
const Count = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER })
const OrNull = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])
const Milliseconds = Type.Integer({ minimum: 0 })

const Secret = Type.Object(
  {
    sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
    /** When the secret stops working, in milliseconds since 1970; null: together with the key. */
    until: OrNull(Milliseconds),
  },
  { additionalProperties: false },
)

const KeyRecordSchema = Type.Object(
  {
    /** The tenant. States on disk belong to it, so it never changes. */
    id: Type.String({ pattern: '^key-[0-9a-f]{24}$' }),
    name: Type.String({ pattern: KEY_NAME.pattern }),
    role: Type.Union([Type.Literal('user'), Type.Literal('operator'), Type.Literal('admin')]),
    createdAt: Milliseconds,
    expiresAt: OrNull(Milliseconds),
    /** Null: no limit of its own. */
    limits: Type.Object(
      {
        requestsPerMinute: OrNull(Count),
        /** Prompt and answer tokens together. */
        tokensPerMinute: OrNull(Count),
        /** Sequences that run at once, over all its requests. */
        rows: OrNull(Count),
        /** Bytes of the states of its sessions. */
        storedBytes: OrNull(Count),
        /** Share of a busy machine, relative to 1 for other keys. */
        share: OrNull(Type.Number({ minimum: 0.01, maximum: 100 })),
        // Keys of older servers lack these fields.
        /**
         * Priority of its requests, and the highest that a request may ask for. Higher ones go first and preempt lower
         * ones. Absent or null: 0.
         */
        priority: Type.Optional(OrNull(Type.Integer({ minimum: PRIORITIES[0], maximum: PRIORITIES[1] }))),
        /** Default and maximum of the time that a request may take. Absent or null: no limit. */
        timeoutSeconds: Type.Optional(OrNull(Type.Number({ exclusiveMinimum: 0, maximum: LONGEST_TIMEOUT }))),
      },
      { additionalProperties: false },
    ),
    /** Newest first; older ones stay until their grace period ends. */
    secrets: Type.Array(Secret, { minItems: 1 }),
  },
  { additionalProperties: false },
)

export type KeyRecord = Static<typeof KeyRecordSchema>
export type KeyLimits = KeyRecord['limits']

const KeyListSchema = Type.Object(
  { version: Type.Literal(1), keys: Type.Array(KeyRecordSchema) },
  { additionalProperties: false },
)

/** Throws `invalid_request` with the name of the wrong part. */
export function parseKeyList(text: string): readonly KeyRecord[] {
  const parsed = parseJson(text)
  const [first] = problemsOf(KeyListSchema, parsed)
  if (first !== undefined) throw new SkeinError('invalid_request', `${first.instancePath || '/'} ${first.message}`)
  // The schema was just checked.
  const value = parsed as Static<typeof KeyListSchema>
  const names = value.keys.map(({ name }) => name)
  const twice = names.find((name, i) => names.indexOf(name) !== i)
  if (twice !== undefined) throw new SkeinError('invalid_request', `two keys have the name ${twice}`)
  return value.keys
}

export function formatKeyList(keys: readonly KeyRecord[]): string {
  return `${JSON.stringify({ version: 1, keys }, null, 2)}\n`
}

type NewKey = Pick<KeyRecord, 'name' | 'role' | 'expiresAt' | 'limits'>

/** A changed list, and the secret, which is stored nowhere else. */
export interface Issued {
  readonly keys: readonly KeyRecord[]
  readonly key: KeyRecord
  readonly secret: string
}

export function addKey(keys: readonly KeyRecord[], { limits, ...rest }: NewKey, now: number): Issued {
  if (keys.some(({ name }) => name === rest.name))
    throw new SkeinError('conflict', `a key named ${rest.name} exists; change, rotate or revoke it`, { param: 'name' })
  const secret = newSecret()
  const id = `key-${randomBytes(12).toString('hex')}`
  const secrets = [{ sha256: hashOf(secret), until: null }]
  const key: KeyRecord = { id, ...rest, createdAt: now, limits: { ...limits }, secrets }
  check(key)
  return { keys: [...keys, key], key, secret }
}

/** What is absent stays as it is. */
export interface KeyChange {
  readonly role?: Role
  readonly expiresAt?: number | null
  readonly limits?: Partial<KeyLimits>
}

/** The key keeps its secrets and its states. */
export function changeKey(keys: readonly KeyRecord[], name: string, { limits, ...rest }: KeyChange) {
  const old = findKey(keys, name)
  const key: KeyRecord = { ...old, ...rest, limits: { ...old.limits, ...limits } }
  check(key)
  return { keys: keys.map((each) => (each === old ? key : each)), key }
}

function check(key: KeyRecord): void {
  const [problem] = problemsOf(KeyRecordSchema, key)
  if (problem === undefined) return
  const param = problem.instancePath.split('/').at(-1)!
  throw invalid(param, param === 'name' ? `expected ${KEY_NAME.means}` : `${problem.message}`)
}

/** Gives the key a new secret. Older ones keep working for `graceMs`, so that clients can change over. */
export function rotateKey(keys: readonly KeyRecord[], name: string, graceMs: number, now: number): Issued {
  const old = findKey(keys, name)
  if (isExpired(old, now)) {
    const message = `${name} has expired, and a new secret would be refused, too; change when it ends first (skein keys change ${name} --expires 30d)`
    throw new SkeinError('conflict', message, { param: 'name' })
  }
  const secret = newSecret()
  const end = now + graceMs
  const older = old.secrets
    .map(({ sha256, until }) => ({ sha256, until: Math.min(until ?? end, end) }))
    .filter(({ until }) => until > now)
  const key = { ...old, secrets: [{ sha256: hashOf(secret), until: null }, ...older] }
  return { keys: keys.map((each) => (each === old ? key : each)), key, secret }
}

export function revokeKey(keys: readonly KeyRecord[], name: string): readonly KeyRecord[] {
  const old = findKey(keys, name)
  return keys.filter((key) => key !== old)
}

function findKey(keys: readonly KeyRecord[], name: string): KeyRecord {
  const key = keys.find((candidate) => candidate.name === name)
  if (key !== undefined) return key
  throw new SkeinError('not_found', 'there is no key of that name')
}

export function isExpired({ expiresAt }: KeyRecord, now: number): boolean {
  return expiresAt !== null && expiresAt <= now
}

function newSecret(): string {
  return `sk-skein-${randomBytes(32).toString('base64url')}`
}

function hashOf(secret: string): string {
  return createHash('sha256').update(secret).digest('hex')
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new SkeinError('invalid_request', 'it is not JSON', { cause: error })
  }
}

export function parseRole(given: string): Role {
  const role = ROLES.find((candidate) => candidate === given)
  if (role !== undefined) return role
  throw invalid('role', `expected one of ${ROLES.join(', ')}`)
}
