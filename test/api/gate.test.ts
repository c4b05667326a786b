import { type AddressInfo, connect } from 'node:net'
import { describe, expect, test } from 'vitest'
import { createAuth, resolveAuth } from '../../src/gateway/access/auth.ts'
import { allDialects } from '../../src/gateway/app.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import { CHAT, HELLO, postTo, serve } from './kit.ts'

const KEY = 'sk-test-key'
const SYSTEM_PATHS = [
  '/readyz',
  '/health',
  '/version',
  '/metrics',
  '/openapi.json',
  '/v1/queue/status',
  '/v1/stats',
  '/v1/me',
]
const ALL = allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)
const pairs = (routes: typeof ALL) => {
  const unique = new Set(routes.map(({ method, path }) => `${method} ${path}`))
  // Written just above.
  return [...unique].map((pair) => pair.split(' ') as ['GET' | 'POST' | 'DELETE', string])
}
const DEFERRED = pairs(ALL.filter(({ access }) => access !== undefined))
const ROUTES = [...pairs(ALL), ...SYSTEM_PATHS.map((path) => ['GET', path] as const)]

describe('with a key', () => {
  const { app, engine } = serve(undefined, { keys: [KEY, 'second'] })

  test('the routes tested below are those of the router', async () => {
    await app.ready()
    const printed = app.printRoutes({ commonPrefix: false })
    for (const [, path] of ROUTES)
      expect((['GET', 'POST', 'DELETE'] as const).some((method) => app.hasRoute({ method, url: path }))).toBe(true)
    const methods = [...printed.matchAll(/\(([A-Z, ]+)\)/g)].flatMap(([, all]) => all!.split(', '))
    const numRoutes = methods.filter((method) => method !== 'HEAD').length
    // All routes except /livez and the pages, which hold no secrets: /, /docs, /docs/, /docs/*, /browser, /browser/*,
    // /sw.js, /favicon.ico, /assets/*.
    expect(numRoutes).toBe(ROUTES.length + 10)
  })

  test.each(ROUTES)('%s %s needs a key', async (method, path) => {
    for (const authorization of [undefined, 'Bearer wrong', `Basic ${KEY}`, KEY, 'Bearer ', `Bearer ${KEY}x`]) {
      const headers = authorization === undefined ? {} : { authorization }
      const reply = await app.inject({ method, url: path.replace(':id', 'goose'), headers })
      expect(reply.statusCode).toBe(401)
      expect(reply.headers['www-authenticate']).toBe('Bearer')
      expect(reply.body).toMatch(/API key|password/)
    }
  })

  test('the refusal has the OpenAI format where the route has', async () => {
    const reply = await app.inject({ method: 'POST', url: CHAT, payload: HELLO })
    expect(reply.json().error).toMatchObject({ type: 'authentication_error', code: 'invalid_api_key' })
  })

  test('a wrong key in the header is not reported as missing', async () => {
    const messageTo = async (headers: Record<string, string>, payload: object = HELLO) =>
      (await app.inject({ method: 'POST', url: CHAT, headers, payload })).json().error.message
    const wrong = { authorization: 'Bearer wrong' }
    expect(await messageTo({})).toMatch('no API key')
    expect(await messageTo(wrong)).toBe('the API key is not valid on this server')
    expect(await messageTo(wrong, { ...HELLO, password: null })).toMatch('not valid on this server')
  })

  test.each(DEFERRED)('%s %s also accepts the key in the body, and no other key', async (method, path) => {
    const send = (payload: object) => app.inject({ method, url: path.replace(':id', 'goose'), payload })
    for (const password of [undefined, null, '', 'wrong', `${KEY}x`, [KEY], { KEY }, 1, true]) {
      expect((await send({ password })).statusCode, JSON.stringify(password)).toBe(401)
    }
    expect((await send([KEY])).statusCode).toBe(401)
    expect((await send({ password: KEY })).statusCode).not.toBe(401)
    expect((await send({ password: 'second' })).statusCode).not.toBe(401)
  })

  test('on other routes a key in the body has no effect', async () => {
    const inBody = new Set(DEFERRED.map(([, path]) => path))
    for (const [method, path] of ROUTES.filter(([, path]) => !inBody.has(path))) {
      const payload = method === 'POST' ? { payload: { password: KEY } } : {}
      expect((await app.inject({ method, url: path, ...payload })).statusCode, path).toBe(401)
    }
  })

  test.each([
    '//v1/models',
    '/V1/models',
    '/v1%2fmodels',
    '/v1/models/',
    '/v1/models.',
    '/v1/../v1/models',
    '/%76%31/models',
    '/v1/models?x=/livez',
    '/livez/',
    '//livez',
    '/livez/../v1/models',
    '/LIVEZ',
    '/%6civez',
    '/livez%2f..%2fv1%2fmodels',
    '/nowhere',
    '/index.html',
    '/assets/x',
    '/assets/../v1/models',
    '/livez?x',
    '/%',
    '/%zz',
    `/v1/models/${'x'.repeat(500)}`,
    '*',
  ])('no spelling of a path bypasses the check: %s', async (url) => {
    for (const method of ['GET', 'POST', 'DELETE', 'OPTIONS', 'HEAD', 'PUT'] as const) {
      const reply = await app.inject({ method, url })
      expect(reply.statusCode, `${method} ${url}`).toBe(401)
    }
  })

  test('every key opens the server, and only liveness needs none', async () => {
    for (const key of [KEY, 'second']) {
      const headers = { authorization: `Bearer ${key}` }
      expect((await app.inject({ url: '/v1/models', headers })).statusCode).toBe(200)
      expect((await app.inject({ url: '/nowhere', headers })).statusCode).toBe(404)
      expect((await app.inject({ url: '/%zz', headers })).statusCode).toBe(400)
    }
    expect((await app.inject({ url: '/livez' })).json()).toEqual({ status: 'ok' })
    expect(engine.requests).toHaveLength(0)
  })
})

test('keys are compared completely', () => {
  const auth = createAuth(['abc'])
  expect(auth.checkPassword('abc')).toMatchObject({ role: 'admin', name: 'command line' })
  for (const wrong of ['ab', 'abcd', 'ABC', '']) {
    expect(() => auth.checkPassword(wrong), wrong).toThrow('not valid on this server')
  }
})

test('states on disk are stored under the tenant of a key from the command line', () => {
  const { tenant } = createAuth(['abc']).checkPassword('abc')
  expect(tenant).toBe('key-03690ac2923ca9e1d7828a3a')
})

describe('resolveAuth', () => {
  test.each(['127.0.0.1', 'localhost', '::1', '[::1]', '127.8.9.1'])('%s is open without a key', (host) => {
    expect(resolveAuth({ host })).toMatchObject({ keys: [], generatedKey: null })
  })

  test.each(['0.0.0.0', '::', '192.168.1.5', 'example.com', '127.0.0.1.example.com'])(
    '%s gets a key of its own',
    (host) => {
      const { keys, generatedKey, message } = resolveAuth({ host })
      expect(generatedKey).toMatch(/^sk-[\w-]{32}$/)
      expect(keys).toEqual([generatedKey])
      expect(message).toContain(`export SKEIN_API_KEY=${generatedKey}`)
      expect(resolveAuth({ host }).generatedKey).not.toBe(generatedKey)
    },
  )

  test('on loopback under a public name it gets a key, too: a proxy is in front of it', () => {
    const name = { host: '127.0.0.1', allowedHosts: ['localhost', 'llm.example.org'] }
    expect(resolveAuth(name).generatedKey).toMatch(/^sk-/)
    expect(resolveAuth({ ...name, noAuth: true }).message).toBe('OPEN to everyone who can reach llm.example.org')
    expect(resolveAuth({ ...name, allowedHosts: ['localhost'] }).generatedKey).toBeNull()
  })

  test('given keys are used, and not generated again', () => {
    const decision = resolveAuth({ host: '0.0.0.0', apiKey: 'a, b,', password: 'c' })
    expect(decision).toEqual({ keys: ['a', 'b', 'c'], generatedKey: null, message: 'requests need one of 3 keys' })
    expect(resolveAuth({ host: '0.0.0.0', noAuth: true }).keys).toEqual([])
    expect(() => resolveAuth({ host: 'x', noAuth: true, apiKey: 'a' })).toThrow('exclude each other')
  })
})

describe('origin and host', () => {
  const loopback = serve()
  const get = (headers: Record<string, string>, { app } = loopback) => app.inject({ url: '/v1/models', headers })

  test.each([
    [{ host: 'localhost:8000' }, 200],
    [{ host: '127.0.0.1:8000' }, 200],
    [{ host: '[::1]:8000' }, 200],
    [{ host: 'evil.example' }, 403],
    [{ host: 'evil.example:8000' }, 403],
    [{ host: 'localhost.evil.example' }, 403],
    [{ host: 'localhost', origin: 'http://localhost:3000' }, 200],
    [{ host: 'localhost', origin: 'http://127.0.0.1:3000' }, 200],
    [{ host: 'localhost', origin: 'https://evil.example' }, 403],
    [{ host: 'localhost', origin: 'http://localhost.evil.example' }, 403],
    [{ host: 'localhost', origin: 'null' }, 403],
    [{ host: 'localhost', origin: 'file://' }, 200],
  ])('bound to loopback, %o gives %i', async (headers, status) => {
    const reply = await get(headers)
    expect(reply.statusCode).toBe(status)
    const allowed = status === 200 && 'origin' in headers ? headers.origin : undefined
    expect(reply.headers['access-control-allow-origin']).toBe(allowed)
    expect(reply.headers['access-control-allow-credentials']).toBeUndefined()
    // openai-node decides by this whether and when to retry.
    if (allowed !== undefined) {
      expect(reply.headers['access-control-expose-headers']).toMatch(/retry-after, x-should-retry/)
    }
  })

  test('what the operator allows is accepted', async () => {
    const allowing = serve(undefined, {
      allowedOrigins: ['https://app.example'],
      allowedHosts: ['proxy.example'],
    })
    expect((await get({ host: 'proxy.example', origin: 'https://app.example' }, allowing)).statusCode).toBe(200)
    expect((await get({ host: 'proxy.example', origin: 'https://app2.example' }, allowing)).statusCode).toBe(403)
    const all = serve(undefined, { allowedOrigins: ['*'] })
    expect((await get({ host: 'localhost', origin: 'https://any.example' }, all)).statusCode).toBe(200)
  })

  test('on a public address any host name is accepted with the key', async () => {
    const open = serve(undefined, { host: '0.0.0.0', keys: [KEY] })
    const authorization = `Bearer ${KEY}`
    expect((await get({ host: 'my.server', authorization }, open)).statusCode).toBe(200)
    expect((await get({ host: 'my.server', authorization, origin: 'https://evil.example' }, open)).statusCode).toBe(403)
  })

  test.each([
    ['my.server:8000', 'http://my.server:8000', 200],
    ['My.Server', 'https://my.server', 200],
    ['192.0.2.7:8000', 'http://192.0.2.7:8000', 200],
    ['my.server:8000', 'http://my.server:9000', 403],
    ['my.server:8000', 'http://my.server', 403],
    ['my.server', 'file://my.server', 403],
    ['my.server', 'null', 403],
  ])('its own pages may call it: at %s, from %s: %i', async (host, origin, status) => {
    const open = serve(undefined, { host: '0.0.0.0', keys: [KEY] })
    const reply = await get({ host, origin, authorization: `Bearer ${KEY}` }, open)
    expect(reply.statusCode).toBe(status)
  })

  test('behind a proxy that drops its port the dashboard loads, and is told what to do; no foreign page reads its files', async () => {
    const proxied = serve(undefined, { allowedHosts: ['my.server'], keys: [KEY] })
    const headers = { host: 'my.server', origin: 'https://my.server:8443' }
    const page = await proxied.app.inject({ url: '/docs', headers })
    expect(page.statusCode).toBe(302)
    expect(page.headers['access-control-allow-origin']).toBeUndefined()
    expect((await get(headers, proxied)).json().error.message).toContain('--allow-origin https://my.server:8443')
    expect((await proxied.app.inject({ url: '/docs', headers: { host: 'evil.example' } })).statusCode).toBe(403)
  })

  test('a name that merely resolves to loopback is not accepted', async () => {
    const rebound = { host: 'evil.example:8000', origin: 'http://evil.example:8000' }
    expect((await get(rebound)).statusCode).toBe(403)
  })

  test('a preflight needs no key, but an allowed origin', async () => {
    const { app } = serve(undefined, { keys: [KEY] })
    // Headers that openai-node sends from a page: "x-stainless-…".
    const asked = 'authorization,content-type,x-stainless-arch,x-stainless-lang'
    const preflight = (origin: string, more = {}) => {
      const method = { 'access-control-request-method': 'POST' }
      const headers = { host: 'localhost', origin, ...method, ...more }
      return app.inject({ method: 'OPTIONS', url: CHAT, headers })
    }
    const headers = { 'access-control-request-headers': asked }
    const reply = await preflight('http://localhost:3000', headers)
    expect(reply.statusCode).toBe(204)
    expect(reply.headers['access-control-allow-headers']).toBe(asked)
    expect((await preflight('http://localhost:3000')).statusCode).toBe(204)
    expect((await preflight('https://evil.example', headers)).statusCode).toBe(403)
  })
})

test('a harmless client request id is echoed, and never names engine requests', async () => {
  const { app, engine } = serve()
  const send = (id: string) =>
    app.inject({ method: 'POST', url: CHAT, payload: HELLO, headers: { 'x-request-id': id } })
  expect((await send('trace-1')).headers['x-request-id']).toBe('trace-1')
  expect((await send('trace-1')).headers['x-request-id']).toBe('trace-1')
  expect((await send('a b')).headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/)
  expect(new Set(engine.requests.map(({ id }) => id)).size).toBe(3)
  expect(engine.requests.every(({ id }) => /^chatcmpl-[0-9a-f]{32}$/.test(id))).toBe(true)
})

test('neither replies nor logs reveal internals', async () => {
  const lines: string[] = []
  const { pino } = await import('pino')
  const logger = pino({}, { write: (line: string) => lines.push(line) })
  const { app } = serve(
    () => {
      throw new Error('cannot read /srv/models/secret.pth at 0x7ffe12 key sk-test-key')
    },
    { keys: [KEY], logger },
  )
  const headers = { authorization: `Bearer ${KEY}` }
  const payload = { messages: [{ role: 'user', content: 'CANARY-PROMPT' }] }
  const reply = await app.inject({ method: 'POST', url: CHAT, payload, headers })
  expect(reply.statusCode).toBe(500)
  expect(reply.body).not.toMatch(/\/srv|0x7f|secret|at .*\.ts/)
  expect(reply.json().error.message).toContain(reply.headers['x-request-id'])
  await app.inject({ method: 'POST', url: CHAT, payload, headers: { authorization: 'Bearer CANARY-KEY' } })
  await app.inject({ method: 'POST', url: '/CANARY-PATH?CANARY-QUERY', payload: { CANARY: 1 }, headers })
  await app.inject({ method: 'POST', url: CHAT, payload: { ...payload, temperature: 'CANARY-VALUE' }, headers })
  await app.inject({ url: '/metrics', headers }).then(({ body }) => expect(body).not.toContain('CANARY'))
  expect(lines.length).toBeGreaterThan(5)
  expect(lines.join('')).not.toContain('CANARY')
})

test('an unknown model is 404; a missing one is the only model', async () => {
  const { app } = serve()
  const reply = await postTo(app, CHAT, { ...HELLO, model: 'duck' })
  expect(reply.statusCode).toBe(404)
  expect(reply.json().error).toMatchObject({ code: 'model_not_found', param: 'model', type: 'invalid_request_error' })
  expect((await postTo(app, CHAT, HELLO)).json().model).toBe('goose')
})

test('a request with two Host headers is refused', async () => {
  const { app } = serve()
  await app.listen({ host: '127.0.0.1', port: 0 })
  // Listening on TCP, the address is an object.
  const { port } = app.server.address() as AddressInfo
  const replyTo = (headers: string) =>
    new Promise<string>((resolve) => {
      const socket = connect(port, '127.0.0.1')
      let text = ''
      socket.on('data', (bytes) => {
        text += bytes
      })
      socket.on('close', () => resolve(text))
      socket.write(`GET /livez HTTP/1.1\r\n${headers}\r\nconnection: close\r\n\r\n`)
    })
  expect(await replyTo('host: localhost')).toMatch(/^HTTP\/1.1 200 /)
  for (const other of ['localhost', 'evil.example']) {
    expect(await replyTo(`host: localhost\r\nHOST: ${other}`)).toMatch(/^HTTP\/1.1 400 /)
  }
  await app.close()
})
