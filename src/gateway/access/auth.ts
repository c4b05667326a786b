/**
 * Decides who may use the gateway: the keys, and whether a request carries one. Keys are kept as SHA-256 digests and
 * compared in constant time. Nothing here logs or returns a key, except one that was just generated.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { ROLES, type Role } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'
import type { FollowedKey, NamedKeys } from './key-index.ts'
import { isExpired, type KeyLimits, NO_LIMITS } from './keys.ts'

interface AuthOptions {
  /** The address that the server listens on. */
  readonly host: string
  /** Further names it answers to, such as that of a proxy in front of it. */
  readonly allowedHosts?: readonly string[] | undefined
  /** One key, or several separated by commas. */
  readonly apiKey?: string | undefined
  /** The same secret, under the name that rwkv_lightning's clients use. */
  readonly password?: string | undefined
  /** The operator confirms that a server without keys on a public address is intended. */
  readonly noAuth?: boolean | undefined
  /** Number of named keys. */
  readonly numNamed?: number | undefined
}

interface AuthDecision {
  /** Secrets of the command line. If there are none, and no named key either, the server is open. */
  readonly keys: readonly string[]
  /** Generated because the address is public and no key was given. Print it once; it is stored nowhere. */
  readonly generatedKey: string | null
  readonly message: string
}

/**
 * A server is open only on loopback and under its names, or with --no-auth. Otherwise it needs a key, and generates one if none was given.
 */
export function resolveAuth(options: AuthOptions): AuthDecision {
  const { host, allowedHosts = [], apiKey, password, noAuth, numNamed = 0 } = options
  const others = [host, ...allowedHosts].filter((name) => !isLoopback(name))
  const keys = [...(apiKey?.split(',') ?? []), password ?? ''].map((key) => key.trim()).filter((key) => key !== '')
  const numKeys = keys.length + numNamed
  if (noAuth === true && numKeys > 0) {
    const message =
      keys.length > 0
        ? '--no-auth and a key exclude each other; give one'
        : `--no-auth excludes the ${numNamed} named keys; revoke them or leave it out`
    throw new SkeinError('invalid_request', message)
  }
  if (numKeys > 0) {
    const count = numKeys === 1 ? 'a key' : `one of ${numKeys} keys`
    return { keys, generatedKey: null, message: `requests need ${count}` }
  }
  if (others.length === 0) return { keys, generatedKey: null, message: 'open to this machine only; no key needed' }
  if (noAuth === true)
    return { keys, generatedKey: null, message: `OPEN to everyone who can reach ${others.join(', ')}` }
  const generatedKey = `sk-${randomBytes(24).toString('base64url')}`
  return {
    keys: [generatedKey],
    generatedKey,
    message: `no key was given, so one was made:  export SKEIN_API_KEY=${generatedKey}`,
  }
}

/** Whether only this machine can reach a host name or address. */
export function isLoopback(host: string): boolean {
  const name = host.replace(/^\[|\]$/g, '').toLowerCase()
  if (name === 'localhost' || name === '::1' || name === '::ffff:127.0.0.1') return true
  return /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(name)
}

/** The tenant of all callers on a server without keys, and of callers that need none. */
export const PUBLIC_TENANT = 'public'

export interface Principal {
  /** The owner of states and requests. It stays the same as long as the key exists, even if the secret changes. */
  readonly tenant: string
  /** For logs and lists. */
  readonly name: string
  readonly role: Role
  readonly limits: KeyLimits
  /** In milliseconds since 1970; null: never. */
  readonly expiresAt: number | null
}

/** Every caller of a server without keys. */
const EVERYONE: Principal = {
  tenant: PUBLIC_TENANT,
  name: 'everyone',
  role: 'admin',
  limits: NO_LIMITS,
  expiresAt: null,
}

/** A caller without a key, of a route that needs none, on a server with keys. */
export const ANONYMOUS: Principal = {
  tenant: PUBLIC_TENANT,
  name: 'anonymous',
  role: 'user',
  limits: NO_LIMITS,
  expiresAt: null,
}

export interface Auth {
  /** There is no key, so everyone may do everything. */
  readonly isOpen: () => boolean
  /** The principal of an Authorization header. Throws `unauthorized` if it has no valid key and the server has keys. */
  check(authorization: string | undefined): Principal
  /** The same for a `password` in a body. Without one, the header is checked again, to throw its error. */
  checkPassword(password: unknown, authorization?: string): Principal
  /** A caller that another member of the cluster has let in, as its key is now. Throws `unauthorized` if it is gone. */
  checkForwarded(caller: Principal): Principal
}

/** `keys` are secrets of the command line, with the role admin; `named` may change at any time. */
export function createAuth(keys: readonly string[], named: NamedKeys | null = null): Auth {
  const digests = keys.map(digest)
  const isOpen = () => keys.length === 0 && named?.isInUse !== true
  const principalOf = (secret: string): Principal => {
    const presented = digest(secret)
    // No early exit, so that the time does not reveal which key was close.
    let isKnown = false
    for (const known of digests) isKnown = timingSafeEqual(known, presented) || isKnown
    const followed = named?.find(presented) ?? null
    if (isKnown) return ofCommandLine(secret)
    if (followed !== null) return ofNamed(followed)
    throw new SkeinError('unauthorized', 'the API key is not valid on this server')
  }
  return {
    isOpen,
    check(authorization) {
      if (isOpen()) return EVERYONE
      const secret = bearerOf(authorization)
      if (secret !== undefined) return principalOf(secret)
      throw new SkeinError('unauthorized', 'no API key; send the header Authorization: Bearer <key>')
    },
    checkPassword(password, authorization) {
      if (isOpen()) return EVERYONE
      const secret = typeof password === 'string' ? password : bearerOf(authorization)
      if (secret !== undefined) return principalOf(secret)
      const message = 'no API key; send the header Authorization: Bearer <key>, or the field password'
      throw new SkeinError('unauthorized', message)
    },
    checkForwarded(caller) {
      // Members share named keys; those of a command line are known to their own server alone.
      if (named === null || caller.tenant === PUBLIC_TENANT || caller.name === COMMAND_LINE) return caller
      const key = named.keys.find(({ id }) => id === caller.tenant)
      if (key !== undefined) return ofNamed({ key, isOver: false })
      throw new SkeinError('unauthorized', 'the API key was revoked')
    },
  }
}

/** The Authorization header, or one made from the key in a header that a dialect names. */
export function authorizationOf(headers: IncomingHttpHeaders, keyHeaders: readonly string[] = []): string | undefined {
  if (headers.authorization !== undefined) return headers.authorization
  const name = keyHeaders.find((header) => typeof headers[header] === 'string')
  return name === undefined ? undefined : `Bearer ${String(headers[name])}`
}

function bearerOf(authorization: string | undefined): string | undefined {
  return /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
}

/** No named key has a space in its name. */
const COMMAND_LINE = 'command line'

function ofCommandLine(secret: string): Principal {
  // Identifies the key without revealing it, because the tenant is part of stored states.
  const tenant = `key-${digest(`tenant ${secret}`).toString('hex').slice(0, 24)}`
  return { tenant, name: COMMAND_LINE, role: 'admin', limits: NO_LIMITS, expiresAt: null }
}

function ofNamed({ key, isOver }: FollowedKey): Principal {
  if (isExpired(key, Date.now()))
    throw new SkeinError(
      'unauthorized',
      `the API key has expired; ask the operator for a later end (skein keys change ${key.name} --expires 30d)`,
    )
  if (isOver) throw new SkeinError('unauthorized', 'the API key was replaced by a newer one; ask the operator for it')
  const { id, name, role, limits, expiresAt } = key
  return { tenant: id, name, role, limits, expiresAt }
}

/** Throws `forbidden` unless the caller has at least this role. */
export function checkRole({ role }: Principal, needed: Role = 'user'): void {
  if (ROLES.indexOf(role) >= ROLES.indexOf(needed)) return
  throw new SkeinError('forbidden', `this needs a key with the role ${needed}; yours is ${role}`)
}

/** Whether a request's key still gives this role: it may be revoked or expire while a stream that it opened runs. */
export function isLetIn(
  auth: Auth,
  authorization: string | undefined,
  forwarded: Principal | null,
  role: Role,
): boolean {
  try {
    checkRole(forwarded === null ? auth.check(authorization) : auth.checkForwarded(forwarded), role)
    return true
  } catch {
    return false
  }
}

function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest()
}
