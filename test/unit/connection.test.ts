import { Agent, createServer, get } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { closeWithConnection } from '../../src/gateway/http/connection.ts'

test('a connection that many apps answer on has one listener for all', async () => {
  // As the proxies of workers: an app each, on the connections of the server's.
  const apps = await Promise.all(
    Array.from({ length: 12 }, async () => {
      const app = Fastify()
      closeWithConnection(app)
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
    await new Promise((resolve) =>
      get({ port, agent }, (reply) => reply.resume().on('end', resolve)),
    )
    listeners.push([...sockets][0]!.listenerCount('close'))
  }
  expect(sockets.size).toBe(1)
  expect(listeners.at(-1)).toBe(listeners[0])
  agent.destroy()
  server.close()
})
