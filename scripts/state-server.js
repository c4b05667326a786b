/**
 * The HTTP server of a bench that is a cluster member without a node: forwards to its workers' sockets. Needs a build.
 */
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import { stateSocketOf } from '../dist/cluster/state-socket.js'

export async function startStateServer() {
  const stateServer = createServer(({ url, headers }, reply) => {
    const [, , , worker, key] = url.split('/')
    const socketPath = stateSocketOf(decodeURIComponent(worker))
    const caller = { 'x-skein-caller': headers['x-skein-caller'] }
    request({ socketPath, path: `/${key}`, headers: caller })
      .once('response', (offer) => {
        reply.writeHead(offer.statusCode, offer.headers)
        offer.pipe(reply)
      })
      .once('error', () => reply.writeHead(404).end())
      .end()
  }).listen(0, '127.0.0.1')
  await once(stateServer, 'listening')
  return stateServer
}
