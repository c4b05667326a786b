/** Serves /metrics on a port of its own, for scrapers without a key. It shows only numbers and names of models. */
import { createServer } from 'node:http'
import { SkeinError } from '../../errors.ts'
import { createOriginPolicy } from '../http/origin.ts'
import type { Metrics } from './metrics.ts'

/** Node leaves out the body of a HEAD reply. */
const METHODS: readonly string[] = ['GET', 'HEAD']

export interface MetricsServer {
  readonly port: number
  close(): Promise<void>
}

export function startMetricsServer(
  metrics: Metrics,
  host: string,
  port: number,
  allowedHosts: readonly string[] = [],
): Promise<MetricsServer> {
  const { registry } = metrics
  const pages = createOriginPolicy({ host, allowedHosts, allowedOrigins: [] })
  const server = createServer((request, response) => {
    try {
      pages.check(request.headers)
    } catch (denied) {
      response.writeHead(403).end(`${SkeinError.from(denied).message}\n`)
      return
    }
    const [path] = (request.url ?? '').split('?')
    if (path !== '/metrics' || !METHODS.includes(request.method ?? '')) {
      response.writeHead(404).end('this port serves only GET /metrics\n')
      return
    }
    registry.metrics().then(
      (text) => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
      () => response.writeHead(500).end(),
    )
  })
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const reason = error.code === 'EADDRINUSE' ? 'it is in use' : error.message
      const message = `the metrics cannot be served on port ${port} of ${host}: ${reason}; choose another with --metrics-port`
      reject(new SkeinError('conflict', message, { param: 'metrics-port', cause: error }))
    })
    server.listen(port, host, () => {
      const address = server.address()
      const bound = typeof address === 'object' && address !== null ? address.port : port
      resolve({ port: bound, close: () => new Promise((done) => void server.close(() => done())) })
    })
  })
}
