/**
 * Channels over Node's child process IPC. Both processes must use `serialization: 'advanced'`, so that Int32Array and
 * bigint survive. The process itself (spawning, restarting, exit codes) belongs to others.
 */
import type { ChildProcess } from 'node:child_process'
import { assert } from '../../errors.ts'
import type { FromWorker, ToWorker } from '../messages.ts'
import type { Channel } from './channel.ts'
import type { StepColumns } from './step-columns.ts'
import { divide, type Id, type Large, type Part, WireReader } from './wire.ts'

/** How long messages of a dead worker may still be on their way before its channel counts as closed. */
const LAST_MESSAGES_MS = 1000

/**
 * With more on their way no more should be made: steps that the other end has not read, and bytes of what goes in parts.
 * A GPU makes them faster than a gateway under load takes them, and what can be read at once takes one turn of its loop.
 */
const MOST_UNREAD_STEPS = 4
/** One message says that so many have been read: each costs both loops some 20 µs. */
const STEPS_TAKEN = 2
const MOST_LARGE_BYTES = 2 ** 26

/** The gateway's end. It closes when the child has gone and its last message has been read. */
export function channelToChild(child: ChildProcess): Channel<ToWorker, FromWorker> {
  const end = new ProcessEnd<ToWorker, FromWorker>(child)
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
  const end = new ProcessEnd<FromWorker, ToWorker>(process)
  const gone = () => end.closed('the gateway has gone')
  process.once('disconnect', gone)
  // It may have, before this process had read its modules; that is told once, and to nobody then.
  if (!process.connected) gone()
  return end
}

/** What ChildProcess and process have in common. */
export interface IpcPort {
  readonly connected: boolean
  send?: ((message: never, callback: (error: Error | null) => void) => boolean) | undefined
  disconnect?: (() => void) | undefined
  on(event: 'message', listener: (message: unknown) => void): unknown
}

type Message = ToWorker | FromWorker
/** What is on its way: small messages, parts of large ones, and, for each part and each pair of steps, that they have been taken. */
type Wire = Message | StepColumns | Part | { readonly type: 'taken' } | { readonly type: 'steps-taken' }

export class ProcessEnd<Out extends Message, In extends Message> implements Channel<Out, In> {
  readonly #port: IpcPort
  readonly #large = new LargeMessages((part) => this.#write(part))
  readonly #reader = new WireReader<In>()
  readonly #messageListeners: ((message: In) => void)[] = []
  readonly #closeListeners: ((reason: string) => void)[] = []
  readonly #whenSent: (() => void)[] = []
  readonly #whenRoom: (() => void)[] = []
  readonly #whenLargeRoom: (() => void)[] = []
  #numUnsent = 0
  #numUnreadSteps = 0
  #numStepsRead = 0
  #closedBecause: string | null = null

  constructor(port: IpcPort) {
    this.#port = port
  }

  send(message: Out): void {
    if (!this.#port.connected) return
    const { now, later } = divide(message, (id) => this.#large.isBehind(id))
    if (now !== null) this.#write(now)
    if (later !== null) this.#large.add(later)
  }

  room(): Promise<void> | null {
    if (this.#numUnreadSteps < MOST_UNREAD_STEPS) return null
    return new Promise((resolve) => this.#whenRoom.push(resolve))
  }

  largeRoom(): Promise<void> | null {
    if (this.#large.bytes < MOST_LARGE_BYTES) return null
    return new Promise((resolve) => this.#whenLargeRoom.push(resolve))
  }

  onMessage(listener: (message: In) => void): void {
    // Node keeps what comes before somebody listens.
    if (this.#messageListeners.length === 0)
      // The peer speaks this protocol: both ends are started from one installation.
      this.#port.on('message', (wire) => this.#receive(wire as Wire))
    this.#messageListeners.push(listener)
  }

  onClose(listener: (reason: string) => void): void {
    if (this.#closedBecause !== null) listener(this.#closedBecause)
    else this.#closeListeners.push(listener)
  }

  async close(): Promise<void> {
    if (!this.#isSent) await new Promise<void>((resolve) => this.#whenSent.push(resolve))
    if (this.#port.connected) this.#port.disconnect?.()
  }

  closed(reason: string): void {
    if (this.#closedBecause !== null) return
    this.#closedBecause = reason
    this.#large.drop()
    this.#tell()
    for (const listener of this.#closeListeners) listener(reason)
  }

  get #isSent(): boolean {
    return this.#numUnsent === 0 && this.#large.isEmpty
  }

  #write(wire: Wire): void {
    this.#numUnsent++
    if (isStep(wire)) this.#numUnreadSteps++
    // The peer's end of the same protocol; a failed send means it has gone, which onClose reports.
    this.#port.send?.(wire as never, () => {
      this.#numUnsent--
      this.#tell()
    })
  }

  #receive(wire: Wire): void {
    if (wire.type === 'taken') {
      this.#large.taken()
      this.#tell()
      return
    }
    if (wire.type === 'steps-taken') {
      this.#numUnreadSteps -= STEPS_TAKEN
      this.#tell()
      return
    }
    const isPart = wire.type === 'part' || wire.type === 'scores' || wire.type === 'rest'
    const message = this.#reader.read(wire)
    if (message !== null) for (const listener of this.#messageListeners) listener(message)
    if (!this.#port.connected) return
    if (isPart) this.#write({ type: 'taken' })
    if (!isStep(wire) || ++this.#numStepsRead < STEPS_TAKEN) return
    this.#numStepsRead = 0
    this.#write({ type: 'steps-taken' })
  }

  /** Whoever waits for it, that all is sent or that there is room. */
  #tell(): void {
    const tell = (is: boolean, waiting: (() => void)[]) => {
      if (is || this.#closedBecause !== null) for (const resolve of waiting.splice(0)) resolve()
    }
    tell(this.#isSent, this.#whenSent)
    tell(this.#numUnreadSteps < MOST_UNREAD_STEPS, this.#whenRoom)
    tell(this.#large.bytes < MOST_LARGE_BYTES, this.#whenLargeRoom)
  }
}

function isStep({ type }: Wire): boolean {
  return type === 'step' || type === 'step-columns'
}

const MOST_ON_THE_WAY = 2

/**
 * What is large, on its way in parts. At most two of them are sent before the other end has taken one, so there is always room for
 * something small on the line, and a peer that does not read costs no more than what it has not read. Knows
 * neither what parts are nor how they are carried.
 */
class LargeMessages {
  readonly #send: (part: Part) => void
  #queue: Large[] = []
  /** How many in the queue are of each. */
  readonly #numOf = new Map<Id, number>()
  #numOnTheWay = 0
  #bytes = 0

  constructor(send: (part: Part) => void) {
    this.#send = send
  }

  get isEmpty(): boolean {
    return this.#queue.length === 0
  }

  /** That it keeps alive, about. */
  get bytes(): number {
    return this.#bytes
  }

  /** Whether something of this request or call is here; of anybody, without an id. */
  isBehind(id?: Id): boolean {
    return id === undefined ? !this.isEmpty : this.#numOf.has(id)
  }

  add(large: Large): void {
    this.#queue.push(large)
    this.#bytes += large.bytes
    for (const id of large.ids) this.#numOf.set(id, (this.#numOf.get(id) ?? 0) + 1)
    this.#sendSome()
  }

  /** The other end has taken a part. */
  taken(): void {
    this.#numOnTheWay--
    this.#sendSome()
  }

  /** Nobody will take any more. */
  drop(): void {
    this.#queue = []
    this.#numOf.clear()
    this.#bytes = 0
  }

  #sendSome(): void {
    while (this.#numOnTheWay < MOST_ON_THE_WAY) {
      const [first] = this.#queue
      if (first === undefined) return
      const { value, done } = first.parts.next()
      if (done === true) this.#forget(first)
      else {
        this.#numOnTheWay++
        this.#send(value)
      }
    }
  }

  #forget({ ids, bytes }: Large): void {
    this.#queue.shift()
    this.#bytes -= bytes
    for (const id of ids) {
      const left = this.#numOf.get(id)! - 1
      if (left > 0) this.#numOf.set(id, left)
      else this.#numOf.delete(id)
    }
  }
}
