import { connect } from 'node:net'
import { join } from 'node:path'
import { beforeAll, describe, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { addKey, NO_LIMITS, revokeKey } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing, readKeys } from '../../src/gateway/access/keys-file.ts'
import { type ClusterView, clusterRoutes } from '../../src/gateway/cluster/pages.ts'
import { Fleet } from '../../src/gateway/fleet/fleet.ts'
import type { Management } from '../../src/gateway/management/management.ts'
import { ownWebFiles } from '../../src/gateway/pages/dashboard.ts'
import { ROUTES_IN_CHINESE } from '../../web/src/lib/chinese-routes.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { managementOf } from './hosted.ts'
import { type Served, serve } from './kit.ts'

/** Routes that need no key on purpose: liveness, and the files of the dashboard, which hold no secrets. */
const OPEN = ['GET /livez', 'GET /', 'GET /docs', 'GET /docs/', 'GET /assets/*']
/**
 * Routes that need more than a user key. A new route of this kind must be added here; otherwise the test reports it.
 */
const OPERATORS = [
  'GET /api/models/pulls',
  'GET /metrics',
  'GET /v1/stats',
  'GET /v1/states',
  'POST /loadmodel',
  'POST /removemodel',
  'POST /loadstatemodel',
  'POST /removestatemodel',
  'POST /switch-model',
  'POST /mrss_loadstatemodel',
  'POST /mrss_set_gatingweight',
  'GET /api/system',
  'GET /api/models',
  'GET /api/requests',
  'GET /api/events',
  'GET /api/workers',
  'POST /api/workers/start',
  'GET /api/workers/:id',
  'DELETE /api/workers/:id',
  'POST /api/workers/:id/stop',
  'POST /api/workers/:id/restart',
  'GET /api/workers/:id/logs',
  'GET /api/workers/:id/logs/stream',
]
/** Answers for as long as requested. */
const ENDLESS = ['GET /api/events']
const ADMINS = [
  'GET /api/models/hub',
  'GET /api/models/hub/files',
  'POST /api/models/pulls',
  'POST /api/models/quantise',
  'DELETE /api/models/:name',
  'GET /api/keys',
  'POST /api/keys',
  'POST /api/keys/:name',
  'POST /api/keys/:name/rotate',
  'DELETE /api/keys/:name',
]

const path = join(temporaryFolder(), 'keys.json')
const secrets: Record<string, string> = {}
let served: Served
let ring: KeyRing
/** The routes of the router: "GET /v1/models/:id". */
const table: string[] = []

beforeAll(async () => {
  for (const role of ['user', 'operator', 'admin'] as const) {
    const key = { name: role, role, expiresAt: null, limits: NO_LIMITS }
    secrets[role] = (await changeKeys(path, (keys) => addKey(keys, key, 0))).secret
  }
  ring = new KeyRing(path)
  served = serve(undefined, {
    keyRing: ring,
    management: emptyManagement(),
    onRoute: ({ method, url }) => {
      table.push(...[method].flat().map((each) => `${each} ${url}`))
    },
  })
  await served.app.ready()
})

/** A control plane without workers. */
function emptyManagement(): Management {
  const refuse = () => {
    throw new SkeinError('not_found', 'there is none', { param: 'model_path' })
  }
  const jobs = { list: () => [], start: refuse, quantise: refuse, remove: refuse, search: refuse, modelsOf: refuse }
  return managementOf(new Fleet({ launcher: refuse }), refuse, { jobs, openGateway: refuse })
}

function call(route: string, headers: Record<string, string> = {}, payload?: object) {
  // The words of the table.
  const [method, url] = route.split(' ') as ['GET' | 'HEAD' | 'POST' | 'DELETE', string]
  const named = url.replace(/:\w+/g, 'no-such-thing').replace('*', 'x')
  return served.app.inject({ method, url: named, headers, ...(payload ? { payload } : {}) })
}

const web = [...ownWebFiles().keys()].map((path) => `GET ${path}`)
const isOpen = (route: string) => isIn([...OPEN, ...web], route)
const isIn = (list: readonly string[], route: string) => list.includes(route.replace(/^HEAD/, 'GET'))
const keyed = () => table.filter((route) => !isOpen(route))
const bearer = (key: string) => ({ authorization: `Bearer ${key}` })

test('the table is parsed completely', () => {
  expect(table).toContain('DELETE /v1/sessions/:id')
  expect(table).toContain('POST /v1/sessions/:id/fork')
  expect(table).toContain('POST /v1/chat/completions')
  expect(table.length).toBeGreaterThan(60)
  for (const route of [...OPERATORS, ...ADMINS]) expect(table).toContain(route)
})

test.each([
  ['GET /v1/chat/completions?a=b', 'no such route for GET; this path takes POST; GET'],
  ['POST /v1/v1/chat/completions', 'no such route; did you mean /v1/chat/completions? GET'],
  ['POST /v1/chat/completion', 'no such route; did you mean /v1/chat/completions? GET'],
  ['POST /v1/chat/completions/', 'no such route; did you mean /v1/chat/completions? GET'],
  ['GET /v1/none', 'no such route; GET /openapi.json lists them'],
  // What the router would read as a pattern.
  ['GET /v1/sessions/:(/x', 'no such route; GET /openapi.json lists them'],
  ['GET /v1/sessions/:((b+)+)/x', 'no such route; GET /openapi.json lists them'],
])('%s says what is there instead', async (route, message) => {
  const reply = await call(route, bearer(secrets.user!))
  expect(reply.statusCode).toBe(404)
  expect(reply.json().error.message).toContain(message)
})

test('the dashboard describes each route in Chinese, and nothing else', async () => {
  const { paths, tags } = (await call('GET /openapi.json', bearer(secrets.user!))).json()
  type Operation = { readonly summary: string }
  const summaries = Object.values<Record<string, Operation>>(paths).flatMap((methods) =>
    Object.values(methods).map(({ summary }) => summary),
  )
  // A front gateway has more.
  const ofFront = clusterRoutes({} as ClusterView)
  const more = ofFront.flatMap(({ summary, dialect }) => [summary, dialect!.about])
  // A single word is a name.
  const groups = (tags as { description: string }[])
    .map(({ description }) => description)
    .filter((text) => text.includes(' '))
  const all = [...new Set([...summaries, ...more, ...groups])].sort()
  expect(Object.keys(ROUTES_IN_CHINESE).sort()).toEqual(all)
})

test('the OpenAPI page says which role a route needs', async () => {
  const { paths } = (await call('GET /openapi.json', bearer(secrets.user!))).json()
  type Operation = { readonly security?: readonly { readonly key: readonly string[] }[] }
  const withRole = (role: string) =>
    Object.entries<Record<string, Operation>>(paths).flatMap(([path, methods]) =>
      Object.entries(methods)
        .filter(([, { security }]) => security?.[0]?.key[0] === role)
        .map(([method]) => `${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ':$1')}`),
    )
  expect(withRole('operator').sort()).toEqual(OPERATORS.toSorted())
  expect(withRole('admin').sort()).toEqual(ADMINS.toSorted())
})

test('no key, a wrong one, one in the wrong place: 401 on every route', async () => {
  const wrong = `sk-skein-${'A'.repeat(43)}`
  for (const route of keyed()) {
    const [, url] = route.split(' ')
    const tries = [
      await call(route),
      await call(route, bearer(wrong)),
      await call(route, { authorization: `Basic ${secrets.admin}` }),
      await call(route, { 'x-auth-token': secrets.admin! }),
      await call(route, { 'x-api-key': wrong }),
      await call(route, { cookie: `key=${secrets.admin}` }),
      await call(`${route}?api_key=${secrets.admin}`),
    ]
    for (const reply of tries) {
      expect(reply.statusCode, `${route}: ${reply.body}`).toBe(401)
      expect(reply.headers['www-authenticate'], url).toBe('Bearer')
    }
  }
})

test('requests are recorded by key, route and figures, without any content', async () => {
  const asked = { messages: [{ role: 'user', content: 'a secret' }] }
  await call('POST /v1/chat/completions', bearer(secrets.user!), asked)
  await call('POST /v1/chat/completions', bearer(secrets.user!), { ...asked, temperature: -1 })
  await call('POST /a-secret', bearer(secrets.user!), asked)
  const reply = await call('GET /api/requests', bearer(secrets.operator!))
  expect(reply.json().requests.slice(0, 3)).toMatchObject([
    { route: null, status: 404, error: 'not_found', key: 'user', model: null },
    { route: '/v1/chat/completions', status: 400, error: 'invalid_request', answer_tokens: 0 },
    {
      ...{ route: '/v1/chat/completions', method: 'POST', status: 200, error: null, key: 'user' },
      ...{ prompt_tokens: expect.any(Number), cut_off: false, first_token_ms: expect.any(Number) },
    },
  ])
  expect(reply.json().requests[2].answer_tokens).toBeGreaterThan(0)
  for (const secret of ['secret', ...Object.values(secrets)]) expect(reply.body).not.toContain(secret)
})

test('clients with a header of their own send the key there, on the routes of their dialect only', async () => {
  for (const header of ['x-api-key', 'api-key']) {
    const own = { [header]: secrets.user! }
    expect((await call('GET /v1/models', own)).statusCode, header).toBe(200)
    expect((await call('GET /api/tags', own)).statusCode, header).toBe(401)
  }
})

test('open routes are open to GET, and reveal no internals', async () => {
  expect((await call('GET /livez')).json()).toEqual({ status: 'ok' })
  expect([200, 401, 404]).toContain((await call('GET /')).statusCode)
})

describe('roles', () => {
  test('a user key opens the routes for users only: 403 with the missing role', async () => {
    for (const route of keyed()) {
      const reply = await call(route, bearer(secrets.user!))
      const isForUsers = !isIn(OPERATORS, route) && !isIn(ADMINS, route)
      expect(reply.statusCode === 403, `${route} gives ${reply.statusCode}`).toBe(!isForUsers)
      expect(reply.statusCode, route).not.toBe(401)
      if (!isForUsers && !route.startsWith('HEAD')) expect(reply.body).toMatch(/role (operator|admin)/)
    }
  })

  test('an operator key opens everything except the keys', async () => {
    for (const route of keyed().filter((each) => !ENDLESS.includes(each))) {
      const reply = await call(route, bearer(secrets.operator!))
      expect(reply.statusCode === 403, `${route} gives ${reply.statusCode}`).toBe(isIn(ADMINS, route))
    }
  })

  test('naming an admin key in a body gives no role', async () => {
    for (const route of [...OPERATORS, ...ADMINS].filter((one) => one.startsWith('POST'))) {
      const reply = await call(route, bearer(secrets.user!), { password: secrets.admin })
      expect(reply.statusCode, route).toBe(403)
    }
  })

  test('an open server on loopback needs no key', async () => {
    const { app } = serve()
    expect((await app.inject('/metrics')).statusCode).toBe(200)
  })
})

test('a request line with an absolute URL does not bypass the check', async () => {
  const { app } = serve(undefined, { keys: ['sesame'] })
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = new URL(url)
  const lineOf = (target: string) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(Number(port), '127.0.0.1', () => {
        socket.write(`GET ${target} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n`)
      })
      let text = ''
      socket.on('data', (data) => (text += data))
      socket.on('end', () => resolve(text.split('\r\n')[0]!))
      socket.on('error', reject)
    })
  expect(await lineOf('/livez')).toBe('HTTP/1.1 200 OK')
  // HTTP/2 without an upgrade is no request at all.
  const other = connect(Number(port), '127.0.0.1', () => {
    other.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
  })
  const reply = await new Promise<string>((resolve) => other.once('data', (data) => resolve(String(data))))
  expect(reply).toMatch(/^HTTP\/1\.1 (400|505) /)
  other.destroy()
  for (const path of ['/v1/models', '/livez/../v1/models', '//v1/models', '/livez#/v1/models']) {
    expect(await lineOf(`${url}${path}`), path).toBe('HTTP/1.1 401 Unauthorized')
    expect(await lineOf(path), path).toBe('HTTP/1.1 401 Unauthorized')
  }
  await app.close()
})

test('other origins and host names are refused before the route, on every route', async () => {
  for (const route of table) {
    // The dashboard's pages are public: a foreign page gets them, and may not read them.
    const isPage = isIn([...web, 'GET /docs', 'GET /docs/'], route)
    const codeOf = async (headers: Record<string, string>) => {
      const reply = await call(route, { ...headers, ...bearer(secrets.admin!) })
      expect(reply.headers['access-control-allow-origin'], route).toBeUndefined()
      return reply.statusCode
    }
    expect(await codeOf({ host: 'evil.example' }), route).toBe(403)
    const code = isPage ? await codeOf({ host: 'localhost' }) : 403
    for (const origin of ['https://evil.example', 'null'])
      expect(await codeOf({ host: 'localhost', origin }), `${route} ${origin}`).toBe(code)
    const own = await call(route, { host: 'localhost', origin: 'http://localhost:3000' })
    expect(own.headers['access-control-allow-origin'], route).toBe('http://localhost:3000')
    expect(own.headers['access-control-allow-credentials'], route).toBeUndefined()
  }
})

describe('/api/keys', () => {
  const as = (role: string) => bearer(secrets[role]!)
  const send = (method: 'GET' | 'POST' | 'DELETE', url: string, payload?: object) =>
    served.app.inject({ method, url, headers: as('admin'), ...(payload ? { payload } : {}) })

  test('a key is added, listed without its secret, rotated and revoked, with immediate effect', async () => {
    const limits = { requests_per_minute: 7 }
    const added = await send('POST', '/api/keys', { name: 'goose', limits })
    expect(added.statusCode).toBe(201)
    const { secret, tenant, ...rest } = added.json()
    expect(rest).toMatchObject({ name: 'goose', role: 'user', expires_at: null })
    const models = (key: string) => served.app.inject({ url: '/v1/models', headers: bearer(key) })
    const opened = await models(secret)
    expect(opened.statusCode).toBe(200)
    expect(opened.headers['x-ratelimit-limit-requests']).toBe('7')

    const listed = await send('GET', '/api/keys')
    expect(listed.json().map(({ name }: { name: string }) => name)).toContain('goose')
    expect(listed.body).not.toContain(secret)
    expect(listed.body).not.toContain('sha256')

    const rotated = (await send('POST', '/api/keys/goose/rotate', { grace_seconds: 60 })).json()
    expect(rotated.tenant).toBe(tenant)
    expect((await models(secret)).statusCode).toBe(200)
    expect((await models(rotated.secret)).statusCode).toBe(200)
    const last = (await send('POST', '/api/keys/goose/rotate', {})).json()
    expect((await models(secret)).statusCode).toBe(401)
    expect((await models(rotated.secret)).statusCode).toBe(401)

    // What is absent stays, null removes.
    const terms = { expires_in_seconds: 60, limits: { requests_per_minute: 9, rows: 2 } }
    const changed = (await send('POST', '/api/keys/goose', terms)).json()
    expect(changed).toMatchObject({ tenant, role: 'user', limits: { requests_per_minute: 9, rows: 2, share: null } })
    expect(changed.expires_at).toBeGreaterThan(Date.now() / 1000)
    expect((await models(last.secret)).headers['x-ratelimit-limit-requests']).toBe('9')
    const without = { role: 'operator', expires_in_seconds: null, limits: { requests_per_minute: null } }
    const freed = (await send('POST', '/api/keys/goose', without)).json()
    expect(freed).toMatchObject({ role: 'operator', expires_at: null, limits: { requests_per_minute: null, rows: 2 } })
    expect((await models(last.secret)).headers['x-ratelimit-limit-requests']).toBeUndefined()
    expect((await send('POST', '/api/keys/goose', { limits: { rows: 0 } })).json().field).toBe('limits.rows')

    expect((await send('DELETE', '/api/keys/goose')).statusCode).toBe(200)
    expect((await models(last.secret)).statusCode).toBe(401)
    expect(readKeys(path).map(({ name }) => name)).not.toContain('goose')
  })

  test.each([
    [{}, 'name'],
    [{ name: 'a b' }, 'name'],
    [{ name: 'x', role: 'king' }, 'role'],
    [{ name: 'x', limits: { rows: 0 } }, 'limits.rows'],
    [{ name: 'x', expires_in_seconds: -1 }, 'expires_in_seconds'],
  ])('a wrong field is named: %o', async (payload, field) => {
    const reply = await send('POST', '/api/keys', payload)
    expect(reply.statusCode, reply.body).toBe(422)
    expect(reply.json()).toMatchObject({ code: 'invalid_request', field })
  })

  test('names that are taken or do not exist', async () => {
    expect((await send('POST', '/api/keys', { name: 'user' })).statusCode).toBe(409)
    expect((await send('DELETE', '/api/keys/nobody')).statusCode).toBe(404)
    expect((await send('POST', '/api/keys/nobody/rotate', {})).statusCode).toBe(404)
    expect((await send('POST', '/api/keys/nobody', {})).statusCode).toBe(404)
  })
})

describe('GET /v1/me', () => {
  const me = async (key: string) => (await served.app.inject({ url: '/v1/me', headers: bearer(key) })).json()

  test('shows the name, role and limits of a key, what it has used and what is left', async () => {
    const limits = {
      requestsPerMinute: 3,
      tokensPerMinute: 500,
      rows: 2,
      storedBytes: 10_000,
      share: 2,
      priority: 3,
      timeoutSeconds: 60,
    }
    const expiresAt = Date.now() + 3_600_000
    const key = { name: 'counted', role: 'user', expiresAt, limits } as const
    const { secret } = await changeKeys(path, (keys) => addKey(keys, key, 0))
    const models = () => served.app.inject({ url: '/v1/models', headers: bearer(secret) })
    ring.refresh()
    served.engine.answerCall = () => [{ bytes: 700 }, { bytes: 34 }]
    served.engine.calls.length = 0
    expect((await models()).statusCode).toBe(200)
    const own = await me(secret)
    expect(own).toEqual({
      object: 'key',
      name: 'counted',
      role: 'user',
      expires_at: expiresAt / 1000,
      limits: {
        requests_per_minute: 3,
        tokens_per_minute: 500,
        rows: 2,
        stored_bytes: 10_000,
        share: 2,
        priority: 3,
        timeout: 60,
      },
      use: { requests_left: 2, tokens_left: 500, rows: 0, stored_bytes: 734 },
    })
    expect(JSON.stringify(own)).not.toContain(secret)
    // It may be requested when nothing else may, and is not counted.
    for (let i = 0; i < 3; i++) await models()
    expect((await models()).statusCode).toBe(429)
    expect((await me(secret)).use.requests_left).toBe(0)
    // So the worker gets no request, however often it is called.
    const numLists = served.engine.calls.filter(({ method }) => method === 'sessions.list').length
    expect(numLists).toBe(1)
    await changeKeys(path, (keys) => ({ keys: revokeKey(keys, 'counted') }))
    ring.refresh()
  })

  test('a key without limits counts nothing; without keys it belongs to everyone', async () => {
    const nothing = { requests_left: null, tokens_left: null, rows: null, stored_bytes: null }
    expect(await me(secrets.operator!)).toMatchObject({ name: 'operator', use: nothing })
    const open = serve(undefined, { keys: [] })
    const everyone = await open.app.inject({ url: '/v1/me' })
    expect(everyone.json()).toMatchObject({ name: 'everyone', role: 'admin', use: nothing })
  })
})

describe('the first key of an open server', () => {
  const own = join(temporaryFolder(), 'first.json')
  const { app } = serve(undefined, { keys: [], keyRing: new KeyRing(own) })
  const add = (name: string, role: string, headers = {}) =>
    app.inject({ method: 'POST', url: '/api/keys', payload: { name, role }, headers })

  test('must be able to create the next one, because it closes the server', async () => {
    for (const role of ['user', 'operator']) {
      const reply = await add('ops', role)
      expect(reply.statusCode).toBe(409)
      expect(reply.json()).toMatchObject({
        field: 'role',
        detail: expect.stringContaining('the first key closes this server'),
      })
      expect(readKeys(own)).toEqual([])
      expect((await app.inject({ url: '/v1/models' })).statusCode).toBe(200)
    }
    const { secret } = (await add('boss', 'admin')).json()
    expect((await app.inject({ url: '/v1/models' })).statusCode).toBe(401)
    expect((await add('ops', 'operator', bearer(secret))).statusCode).toBe(201)
  })

  test('can have any role if the command line has a key', async () => {
    const ring = new KeyRing(join(temporaryFolder(), 'beside.json'))
    const beside = serve(undefined, { keys: ['sesame'], keyRing: ring })
    const reply = await beside.app.inject({
      method: 'POST',
      url: '/api/keys',
      headers: bearer('sesame'),
      payload: { name: 'ops', role: 'operator' },
    })
    expect(reply.statusCode).toBe(201)
  })
})
