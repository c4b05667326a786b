import { EventEmitter, once } from 'node:events'
import { Agent, createServer, get, request } from 'node:http'
import type { AddressInfo, Server, Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { acceptInTurn, setUpConnections } from '../../src/gateway/http/connection.ts'

test('a connection that many apps answer on has one listener for all', async () => {
  // As the proxies of workers: an app each, on the connections of the server's.
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

test('a few connections begin in a turn, each address in its turn', async () => {
  const server = new EventEmitter() as Server // only its events are looked at
  const begun: string[] = []
  server.on('connection', ({ remoteAddress }) => begun.push(remoteAddress!))
  acceptInTurn(server)
  const connect = (remoteAddress: string) =>
    server.emit('connection', Object.assign(new EventEmitter(), { remoteAddress, resume: () => {} }))
  for (let i = 0; i < 100; i++) connect('one')
  connect('two')
  expect(begun).toEqual([])
  await turn()
  expect(begun.length).toBeLessThanOrEqual(16)
  expect(begun.slice(0, 2)).toEqual(['one', 'two'])
  for (let i = 0; i < 20; i++) await turn()
  expect(begun).toHaveLength(101)
})

test('a hundred connections at once have their requests answered whole', async () => {
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
