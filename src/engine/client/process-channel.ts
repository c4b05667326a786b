/**
 * Channels over Node's child process IPC. Both processes must use `serialization: 'advanced'`, so that Int32Array and
 * bigint survive. The process itself (spawning, restarting, exit codes) belongs to others.
 */
import type { ChildProcess } from 'node:child_process'
import { assert } from '../../errors.ts'
import type { FromWorker, ToWorker } from '../messages.ts'
import type { Channel } from './channel.ts'
import { packStep, type StepColumns, unpackStep } from './step-columns.ts'

/** How long messages of a dead worker may still be on their way before its channel counts as closed. */
const LAST_MESSAGES_MS = 1000

/** The gateway's end. It closes when the child has gone and its last message has been read. */
export function channelToChild(child: ChildProcess): Channel<ToWorker, FromWorker> {
  // The peer speaks this protocol: both ends are started from one installation.
  const read = (message: unknown) => unpackStep(message as FromWorker | StepColumns)
  const end = new ProcessEnd<ToWorker, FromWorker>(child, (message) => message, read)
  child.on('error', (error) => {
    // Without a process id it never started; other errors (a failed kill) are followed by an exit or change nothing.
    if (child.pid === undefined) end.closed(error.message)
  })
  child.once('exit', (code, signal) => {
    const reason = signal === null ? `exit code ${code}` : `signal ${signal}`
    if (!child.connected) {
      end.closed(reason)
      return
    }
    const timer = setTimeout(() => end.closed(reason), LAST_MESSAGES_MS)
    child.once('disconnect', () => {
      clearTimeout(timer)
      end.closed(reason)
    })
  })
  return end
}

/** The worker's end; there is one in a process started with an IPC channel. */
export function channelToParent(): Channel<FromWorker, ToWorker> {
  assert(process.send !== undefined, 'this process was not started with an IPC channel')
  const end = new ProcessEnd<FromWorker, ToWorker>(
    process,
    packStep,
    (message) => message as ToWorker,
  )
  const gone = () => end.closed('the gateway has gone')
  process.once('disconnect', gone)
  // It may have, before this process had read its modules; that is told once, and to nobody then.
  if (!process.connected) gone()
  return end
}

/** What ChildProcess and process have in common. */
interface IpcPort {
  readonly connected: boolean
  send?: ((message: never, callback: (error: Error | null) => void) => boolean) | undefined
  disconnect?: (() => void) | undefined
  on(event: 'message', listener: (message: unknown) => void): unknown
}

class ProcessEnd<Out, In> implements Channel<Out, In> {
  readonly #port: IpcPort
  readonly #write: (message: Out) => unknown
  readonly #read: (message: unknown) => In
  readonly #closeListeners: ((reason: string) => void)[] = []
  readonly #whenSent: (() => void)[] = []
  #numUnsent = 0
  #closedBecause: string | null = null

  /** What messages are on their way between the processes is up to `write` and `read`. */
  constructor(port: IpcPort, write: (message: Out) => unknown, read: (message: unknown) => In) {
    this.#port = port
    this.#write = write
    this.#read = read
  }

  send(message: Out): void {
    if (!this.#port.connected) return
    this.#numUnsent++
    // The peer's end of the same protocol; a failed send means it has gone, which onClose reports.
    this.#port.send?.(this.#write(message) as never, () => {
      this.#numUnsent--
      if (this.#numUnsent === 0) for (const resolve of this.#whenSent.splice(0)) resolve()
    })
  }

  onMessage(listener: (message: In) => void): void {
    this.#port.on('message', (message) => listener(this.#read(message)))
  }

  onClose(listener: (reason: string) => void): void {
    if (this.#closedBecause !== null) listener(this.#closedBecause)
    else this.#closeListeners.push(listener)
  }

  async close(): Promise<void> {
    if (this.#numUnsent > 0) await new Promise<void>((resolve) => this.#whenSent.push(resolve))
    if (this.#port.connected) this.#port.disconnect?.()
  }

  closed(reason: string): void {
    if (this.#closedBecause !== null) return
    this.#closedBecause = reason
    for (const listener of this.#closeListeners) listener(reason)
  }
}
