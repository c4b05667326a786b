import { EventEmitter, once } from 'node:events'
import { Agent, createServer, get, IncomingMessage, request } from 'node:http'
import { type AddressInfo, connect, type Server, type Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { acceptInTurn, requestInTurn, setUpConnections } from '../../src/gateway/http/connection.ts'

test('a connection shared by many apps has one listener for all', async () => {
  // Like the proxies of workers: an app each, on the connections of the server.
  const apps = await Promise.all(
    Array.from({ length: 12 }, async () => {
      const app = Fastify()
      setUpConnections(app)
      app.get('/', async () => 'ok')
      await app.ready()
      return app
    }),
  )
  const sockets = new Set<Socket>()
  let next = 0
  const server = createServer((request, reply) => {
    sockets.add(request.socket)
    apps[next++]!.routing(request, reply)
  }).listen(0)
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const { port } = server.address() as AddressInfo
  const listeners: number[] = []
  for (const _ of apps) {
    await new Promise((resolve) => get({ port, agent }, (reply) => reply.resume().on('end', resolve)))
    listeners.push([...sockets][0]!.listenerCount('close'))
  }
  expect(sockets.size).toBe(1)
  expect(listeners.at(-1)).toBe(listeners[0])
  agent.destroy()
  server.close()
})

test('a few connections start per turn, in turn by address', async () => {
  const server = new EventEmitter() as Server // only its events are used
  const begun: string[] = []
  server.on('connection', ({ remoteAddress }) => begun.push(remoteAddress!))
  acceptInTurn(server)
  const arrive = (remoteAddress: string) =>
    server.emit('connection', Object.assign(new EventEmitter(), { remoteAddress, resume: () => {} }))
  for (let i = 0; i < 100; i++) arrive('one')
  arrive('two')
  expect(begun).toEqual([])
  await turn()
  expect(begun.length).toBeLessThanOrEqual(16)
  expect(begun.slice(0, 2)).toEqual(['one', 'two'])
  for (let i = 0; i < 20; i++) await turn()
  expect(begun).toHaveLength(101)
})

test('requests that arrive at once start in many turns, and those without a body do not wait for others', async () => {
  const begun: string[] = []
  const server = createServer(({ method }, reply) => {
    for (const end = performance.now() + 1; performance.now() < end; );
    begun.push(method!)
    reply.end()
  })
  requestInTurn(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // it listens on a port
  const sockets = Array.from({ length: 41 }, () => connect(port, '127.0.0.1'))
  const ask = (methodOf: (i: number) => string) => {
    begun.length = 0
    for (const [i, socket] of sockets.entries())
      socket.write(`${methodOf(i)} / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n`)
    return Promise.all(sockets.map((socket) => once(socket, 'data')))
  }
  // Now all of them are accepted; one starts per turn.
  await ask(() => 'GET')
  const replies = ask((i) => (i === 40 ? 'GET' : 'POST'))
  const perTurn: number[] = []
  for (let last = 0; begun.length < 41; last = begun.length) {
    await turn()
    perTurn.push(begun.length - last)
  }
  // Two milliseconds for each kind, before and after the test counts.
  expect(Math.max(...perTurn)).toBeLessThanOrEqual(8)
  expect(begun.indexOf('GET')).toBeLessThan(20)
  await replies
  for (const socket of sockets) socket.destroy()
  server.close()
})

test('many requests of one connection do not make the others wait', async () => {
  const server = new EventEmitter() as Server // only its events are used
  const begun: string[] = []
  server.on('request', ({ url }) => {
    begun.push(url!)
    for (const end = performance.now() + 1; performance.now() < end; );
  })
  requestInTurn(server)
  const [greedy, other] = [{ destroyed: false }, { destroyed: false }]
  const ask = (socket: object, url: string) => server.emit('request', { method: 'GET', url, socket }, {})
  for (let i = 0; i < 60; i++) ask(greedy, `${i}`)
  ask(other, 'other')
  while (begun.length < 61) await turn()
  expect(begun.indexOf('other')).toBeLessThan(3)
  // Of one connection in their order.
  expect(begun.filter((url) => url !== 'other')).toEqual(Array.from({ length: 60 }, (_, i) => `${i}`))
})

test('a connection that sends too many requests at once is closed, and most of them are never made', async () => {
  let [numMade, numBegun] = [0, 0]
  class Made extends IncomingMessage {
    constructor(socket: Socket) {
      super(socket)
      numMade++
    }
  }
  const server = createServer({ IncomingMessage: Made }, (_, reply) => {
    numBegun++
    reply.end()
  })
  requestInTurn(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // it listens on a port
  const ask = async (count: number) => {
    ;[numMade, numBegun] = [0, 0]
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {}).resume()
    socket.write('GET / HTTP/1.1\r\nhost: a\r\n\r\n'.repeat(count))
    const closed = once(socket, 'close')
    if (count <= 64) {
      while (numBegun < count) await turn()
      socket.destroy()
    }
    await closed
  }
  await ask(64)
  expect([numMade, numBegun]).toEqual([64, 64])
  await ask(2000)
  expect(numMade).toBeLessThanOrEqual(70)
  server.close()
})

test('a request whose client left while it waited does not start', async () => {
  const server = new EventEmitter() as Server // only its events are used
  let numBegun = 0
  server.on('request', () => {
    numBegun++
    for (const end = performance.now() + 5; performance.now() < end; );
  })
  requestInTurn(server)
  const socket = { destroyed: false }
  for (const one of [{ destroyed: false }, socket, { destroyed: false }])
    server.emit('request', { method: 'POST', socket: one }, {})
  socket.destroyed = true
  for (let i = 0; i < 5; i++) await turn()
  expect(numBegun).toBe(2)
})

test('the requests of a hundred simultaneous connections are answered completely', async () => {
  const server = createServer((asked, reply) => {
    let bytes = 0
    asked.on('data', (part: Buffer) => (bytes += part.length))
    asked.on('end', () => reply.end(String(bytes)))
  })
  acceptInTurn(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // it listens on a port
  const answers = Array.from({ length: 100 }, async (_, i) => {
    const sent = request({ port, method: 'POST', agent: false })
    sent.end(Buffer.alloc(1 + i * 3000))
    const [reply] = await once(sent, 'response')
    let text = ''
    for await (const part of reply) text += part
    return text
  })
  expect(await Promise.all(answers)).toEqual(answers.map((_, i) => String(1 + i * 3000)))
  server.close()
})
