/**
 * Both ends of a connection between processes, in one process: the socket holds few bytes; a process reads all of it
 * per turn.
 */
import { deserialize, serialize } from 'node:v8'
import { type IpcPort, ProcessEnd } from '../../src/engine/client/process-channel.ts'
import type { FromWorker, ToWorker } from '../../src/engine/messages.ts'

const SOCKET_BYTES = 200_000

/** One process's end. Data without room in the socket waits in the process, as in Node. */
export class SmallPort implements IpcPort {
  connected = true
  peer: SmallPort | null = null
  /** Sizes of all sent messages. */
  readonly sent: number[] = []
  readonly #listeners: ((message: unknown) => void)[] = []
  readonly #unsent: { bytes: Buffer; left: number; callback: (error: null) => void }[] = []
  /** Bytes of the first unsent messages that are in the socket. */
  #inSocket = 0

  get isIdle(): boolean {
    return this.#unsent.length === 0
  }

  send(message: never, callback: (error: Error | null) => void): boolean {
    const bytes = serialize(message)
    this.sent.push(bytes.length)
    this.#unsent.push({ bytes, left: bytes.length, callback })
    this.#fill()
    return true
  }

  disconnect(): void {
    this.connected = false
  }

  on(_event: 'message', listener: (message: unknown) => void): unknown {
    return this.#listeners.push(listener)
  }

  /** One turn of this process: it reads the socket, and the other process can write again. */
  turn(): void {
    const from = this.peer!
    let read = from.#inSocket
    from.#inSocket = 0
    const whole: Buffer[] = []
    while (read > 0) {
      const [first] = from.#unsent
      const part = Math.min(read, first!.left)
      first!.left -= part
      read -= part
      if (first!.left > 0) break
      from.#unsent.shift()
      whole.push(first!.bytes)
      first!.callback(null)
    }
    for (const bytes of whole) for (const listener of this.#listeners) listener(deserialize(bytes) as unknown)
    from.#fill()
  }

  #fill(): void {
    const waiting = this.#unsent.reduce((sum, { left }) => sum + left, 0)
    this.#inSocket = Math.min(SOCKET_BYTES, waiting)
  }
}

export function portPair() {
  const ports = [new SmallPort(), new SmallPort()] as const
  ports[0].peer = ports[1]
  ports[1].peer = ports[0]
  const gateway = new ProcessEnd<ToWorker, FromWorker>(ports[0])
  const worker = new ProcessEnd<FromWorker, ToWorker>(ports[1])
  return { ports, gateway, worker }
}
