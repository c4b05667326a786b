/** A gateway and a worker in one process: an in-memory channel that clones messages and delivers them later. */
import type { Channel } from '../../src/engine/client/channel.ts'

/** Both ends in one process. Messages are cloned, as with IPC, so neither side sees the other's objects. */
export function channelPair<A, B>(): readonly [ChannelEnd<A, B>, ChannelEnd<B, A>] {
  const left = new ChannelEnd<A, B>()
  const right = new ChannelEnd<B, A>()
  left.peer = right
  right.peer = left
  return [left, right]
}

export class ChannelEnd<Out, In> implements Channel<Out, In> {
  peer: ChannelEnd<In, Out> | null = null
  readonly #messageListeners: ((message: In) => void)[] = []
  readonly #closeListeners: ((reason: string) => void)[] = []
  /** All messages sent from this end, for tests of the protocol itself. */
  readonly sent: Out[] = []
  #isClosed = false

  send(message: Out): void {
    const copy = structuredClone(message)
    const { peer } = this
    if (this.#isClosed || peer === null) return
    this.sent.push(copy)
    setImmediate(() => peer.#receive(copy))
  }

  onMessage(listener: (message: In) => void): void {
    this.#messageListeners.push(listener)
  }

  onClose(listener: (reason: string) => void): void {
    this.#closeListeners.push(listener)
  }

  async close(): Promise<void> {
    this.end('closed')
  }

  /** Closes both ends, as if this process died; the other end first gets the messages in flight. */
  end(reason: string): void {
    if (this.#isClosed) return
    this.#isClosed = true
    for (const listener of this.#closeListeners) listener(reason)
    setImmediate(() => this.peer?.end(reason))
  }

  #receive(message: In): void {
    if (this.#isClosed) return
    for (const listener of this.#messageListeners) listener(message)
  }
}
