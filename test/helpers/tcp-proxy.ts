/** A TCP proxy that can be cut: data sent meanwhile arrives late, after the repair, as over a broken network. */
import { connect, createServer, type Socket } from 'node:net'

export interface TcpProxy {
  readonly port: number
  /** Holds all data, without refusing it, until `mend`. */
  cut(): void
  mend(): void
  /** Ends all connections. */
  drop(): void
  close(): void
}

/** `target`: the port that new connections lead to. */
export async function startProxy(target: () => number): Promise<TcpProxy> {
  const sockets = new Set<Socket>()
  let isCut = false
  const join = (from: Socket, to: Socket) => {
    sockets.add(from)
    from.on('data', (bytes) => {
      if (!to.write(bytes)) from.pause()
    })
    to.on('drain', () => {
      if (!isCut) from.resume()
    })
    from.on('error', () => {})
    from.on('close', () => {
      sockets.delete(from)
      to.destroy()
    })
    if (isCut) from.pause()
  }
  const server = createServer((client) => {
    const server = connect(target(), '127.0.0.1')
    join(client, server)
    join(server, client)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  const drop = () => {
    for (const socket of sockets) socket.destroy()
  }
  return {
    port: typeof address === 'object' ? address!.port : 0,
    cut() {
      isCut = true
      for (const socket of sockets) socket.pause()
    },
    mend() {
      isCut = false
      for (const socket of sockets) socket.resume()
    },
    drop,
    close() {
      drop()
      server.close()
    },
  }
}
