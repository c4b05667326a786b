/**
 * Named keys over HTTP, for admins: list, add, change, rotate, revoke. A secret appears only in the reply that created it. The
 * keys are those of `skein keys`, in the same file.
 */

import { type Dialect, del, get, json, post, type Role, type Route } from '../../api/route.ts'
import { BoundedInteger, Matching, Maybe, urgencyFields } from '../../api/schema.ts'
import { SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { NamedKeys } from '../access/key-index.ts'
import {
  addKey,
  changeKey,
  type Issued,
  KEY_NAME,
  type KeyLimits,
  type KeyRecord,
  NO_LIMITS,
  parseRole,
  revokeKey,
  rotateKey,
} from '../access/keys.ts'
import type { WireLimits } from '../contract.ts'
import { renderManagementError, statusOf } from '../management/dialect.ts'

/** `isOpen`: the server has no key yet, and everyone may do everything. */
export function keysDialect(ring: NamedKeys, isOpen: () => boolean): Dialect {
  const routes = [listRoute(ring), addRoute(ring, isOpen), changeRoute(ring), rotateRoute(ring), revokeRoute(ring)]
  return {
    name: 'keys',
    about: 'Named keys, for admins',
    routes: routes.map((route) => ({ ...route, role: 'admin', inCluster: 'here' })),
    renderError: renderManagementError,
    statusOf,
  }
}

const MAX = Number.MAX_SAFE_INTEGER
const YEARS_100 = 100 * 365 * 86_400

const Limits = Type.Object(
  {
    requests_per_minute: Maybe(BoundedInteger(1, MAX)),
    tokens_per_minute: Maybe(BoundedInteger(1, MAX)),
    rows: Maybe(BoundedInteger(1, MAX)),
    stored_bytes: Maybe(BoundedInteger(1, MAX)),
    share: Maybe(Type.Number({ minimum: 0.01, maximum: 100 })),
    ...urgencyFields(),
  },
  { additionalProperties: false },
)

const fields = {
  role: Maybe(Type.String()),
  expires_in_seconds: Maybe(BoundedInteger(1, YEARS_100)),
  limits: Maybe(Limits),
}
const addBody = Type.Object(
  { name: Matching(KEY_NAME.pattern, KEY_NAME.means), ...fields },
  { additionalProperties: false },
)
const changeBody = Type.Object(fields, { additionalProperties: false })

const rotateBody = Type.Object({ grace_seconds: Maybe(BoundedInteger(0, YEARS_100)) }, { additionalProperties: false })

function listRoute(ring: NamedKeys): Route {
  return get('/api/keys', 'List the named keys, without their secrets', async () => {
    await ring.refresh()
    return json(ring.keys.map(wireKey))
  })
}

function addRoute(ring: NamedKeys, isOpen: () => boolean): Route {
  return post('/api/keys', 'Add a key; only this reply shows its secret', addBody, async ({ body }) => {
    const { name, role, expires_in_seconds: seconds, limits } = body
    const now = Date.now()
    const key = {
      name,
      role: parseRole(role ?? 'user'),
      expiresAt: seconds == null ? null : now + 1000 * seconds,
      limits: { ...NO_LIMITS, ...ownLimits(limits) },
    }
    const issued = await ring.change((keys) => {
      if (isOpen()) refuseLockout(keys, key.role)
      return addKey(keys, key, now)
    })
    return json(wireIssued(issued), 201)
  })
}

/** The first key closes an open server. If it were not an admin's, nobody could add another over HTTP. */
function refuseLockout(keys: readonly KeyRecord[], role: Role): void {
  if (role === 'admin' || keys.some((key) => key.role === 'admin')) return
  const message = `role: the first key closes this server to all who have none, and only an admin can make another; make one with the role admin first (skein keys add, on the server's machine, can do both)`
  throw new SkeinError('conflict', message, { param: 'role' })
}

/** An absent field stays as it is; null removes an end or a limit. */
function changeRoute(ring: NamedKeys): Route {
  return post('/api/keys/:name', "Change a key's role, end or limits", changeBody, async ({ params, body }) => {
    const { role, expires_in_seconds: seconds, limits } = body
    const change = {
      ...(role == null ? {} : { role: parseRole(role) }),
      ...(seconds === undefined ? {} : { expiresAt: seconds === null ? null : Date.now() + 1000 * seconds }),
      limits: ownLimits(limits),
    }
    const { key } = await ring.change((keys) => changeKey(keys, params.name!, change))
    return json(wireKey(key))
  })
}

function rotateRoute(ring: NamedKeys): Route {
  const path = '/api/keys/:name/rotate'
  return post(path, 'Give a key a new secret', rotateBody, async ({ params, body }) => {
    const graceMs = 1000 * (body.grace_seconds ?? 0)
    const issued = await ring.change((keys) => rotateKey(keys, params.name!, graceMs, Date.now()))
    return json(wireIssued(issued))
  })
}

function revokeRoute(ring: NamedKeys): Route {
  return del('/api/keys/:name', 'Revoke a key', async ({ params }) => {
    const name = params.name!
    await ring.change((keys) => ({ keys: revokeKey(keys, name) }))
    return json({ name, revoked: true })
  })
}

const OWN_NAMES: Readonly<Record<keyof WireLimits, keyof KeyLimits>> = {
  requests_per_minute: 'requestsPerMinute',
  tokens_per_minute: 'tokensPerMinute',
  rows: 'rows',
  stored_bytes: 'storedBytes',
  share: 'share',
  priority: 'priority',
  timeout: 'timeoutSeconds',
}

/** Those that are given. */
function ownLimits(limits: Static<typeof Limits> | null | undefined): Partial<KeyLimits> {
  const given = Object.entries(limits ?? {}).filter(([, value]) => value !== undefined)
  // The schema has no other names.
  return Object.fromEntries(given.map(([name, value]) => [OWN_NAMES[name as keyof WireLimits], value]))
}

export function wireLimits(limits: KeyLimits): WireLimits {
  return {
    requests_per_minute: limits.requestsPerMinute,
    tokens_per_minute: limits.tokensPerMinute,
    rows: limits.rows,
    stored_bytes: limits.storedBytes,
    share: limits.share,
    priority: limits.priority ?? null,
    timeout: limits.timeoutSeconds ?? null,
  }
}

function wireIssued({ key, secret }: Issued): object {
  return { ...wireKey(key), secret }
}

/** Times are seconds since 1970, as everywhere below /api. */
export function wireKey({ id, name, role, createdAt, expiresAt, limits, secrets }: KeyRecord): object {
  return {
    name,
    role,
    tenant: id,
    created_at: createdAt / 1000,
    expires_at: expiresAt === null ? null : expiresAt / 1000,
    limits: wireLimits(limits),
    /** When older secrets expire. */
    grace_until: secrets.flatMap(({ until }) => (until === null ? [] : [until / 1000])),
  }
}
