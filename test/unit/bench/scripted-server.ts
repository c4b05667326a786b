/** An HTTP server on loopback that gives the replies of a test and records the request bodies. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface Received {
  readonly method: string
  readonly path: string
  readonly authorization: string | undefined
  /** As parsed; undefined without a body. */
  readonly body: Record<string, unknown> | undefined
  readonly port: number | undefined
}

export interface ScriptedServer {
  readonly url: string
  readonly received: Received[]
  close(): Promise<void>
}

export type Answer = (response: ServerResponse, received: Received) => void

export async function scriptedServer(answer: Answer): Promise<ScriptedServer> {
  const received: Received[] = []
  const server = createServer(async (request, response) => {
    const one = await read(request)
    received.push(one)
    answer(response, one)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  // A server that listens on a port has an address of that form.
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    received,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

async function read(request: IncomingMessage): Promise<Received> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) text += chunk
  return {
    method: request.method ?? '',
    path: request.url ?? '',
    authorization: request.headers.authorization,
    body: text === '' ? undefined : JSON.parse(text),
    port: request.socket.remotePort,
  }
}

export function sendJson(response: ServerResponse, body: unknown, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

export function sendEvents(response: ServerResponse, events: readonly string[]): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const data of events) response.write(`data: ${data}\n\n`)
  response.end()
}
