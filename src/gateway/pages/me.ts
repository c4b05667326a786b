/**
 * GET /v1/me: the name of the caller's key, what it may do, its limits and what is left of them. Any role may call it,
 * and it never counts as a request: a caller who has used up the minute must be able to see so. Values that cost the
 * workers work are read at most once a second per key.
 */
import type { ModelRegistry } from '../../api/models.ts'
import { ANONYMOUS, type Principal } from '../access/auth.ts'
import type { RateLimits } from '../access/rate-limits.ts'
import type { OwnKey } from '../contract.ts'
import type { OwnRoute } from '../http/own-routes.ts'
import { wireLimits } from './keys-api.ts'

/** How long the size of a key's sessions is cached. */
const LOOK_MS = 1000

export function meRoute({ models, rates }: { readonly models: ModelRegistry; readonly rates: RateLimits }): OwnRoute {
  const looks = new Map<string, Promise<number>>()
  const bytesOf = (caller: Principal) => {
    const { tenant } = caller
    const look = looks.get(tenant) ?? storedBytes(caller, models)
    if (!looks.has(tenant)) setTimeout(() => looks.delete(tenant), LOOK_MS).unref()
    looks.set(tenant, look)
    return look
  }
  const keyOf = async (caller: Principal): Promise<OwnKey> => {
    const { name, role, limits, expiresAt } = caller
    const { requestsLeft, tokensLeft, rowsRunning } = rates.useOf(caller)
    return {
      object: 'key',
      name,
      role,
      expires_at: expiresAt === null ? null : expiresAt / 1000,
      limits: wireLimits(limits),
      use: {
        requests_left: requestsLeft,
        tokens_left: tokensLeft,
        rows: rowsRunning,
        stored_bytes: limits.storedBytes === null ? null : await bytesOf(caller),
      },
    }
  }
  return {
    path: '/v1/me',
    summary: "Role and limits of the caller's key, and what is left of them",
    handle: ({ principal }) => keyOf(principal ?? ANONYMOUS),
  }
}

/** That of the model with the most, because the limit applies to each model separately. */
async function storedBytes({ tenant }: Principal, models: ModelRegistry): Promise<number> {
  const clients = models.list().flatMap(({ client }) => client ?? [])
  const sums = clients.map(async (client) => {
    const sessions = await client.call('sessions.list', { tenant })
    return sessions.reduce((sum, { bytes }) => sum + bytes, 0)
  })
  return Math.max(0, ...(await Promise.all(sums)))
}
