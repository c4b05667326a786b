/**
 * Ends this process when its event loop hangs: a thread counts its beats, reports where it hangs, and kills it, so that
 * its parent restarts it. A hanging event loop cannot handle a signal or any other event. In a worker a step may take
 * longer than a hang; what tells them apart is that kernels count the items that they begin, so a step that goes on
 * is seen to, and a loop that never ends is not.
 */
import { setInterval } from 'node:timers'
import { Worker } from 'node:worker_threads'
import { openLibrary } from '../backend/ffi.ts'
import { workDone } from '../threads/work-done.ts'
import type { Watched } from './watchdog-thread.ts'

/** A hundred times the longest that a valid request blocks the event loop. */
const HANG_MS = 10_000
const BEATS_PER_HANG = 20

/** Starts watching. `libraries` are those whose kernels run in the loop. Returns a function that stops it. */
export function watchEventLoop(hangMs = HANG_MS, libraries: readonly string[] = []): () => void {
  const beats = new Int32Array(new SharedArrayBuffer(4))
  const everyMs = hangMs / BEATS_PER_HANG
  const beat = () => Atomics.add(beats, 0, 1)
  // The first at once: nothing is expected before it, and the loop may hang sooner than the next.
  setImmediate(beat)
  const beating = setInterval(beat, everyMs).unref()
  const workerData: Watched = { beats, workDone, libraries, everyMs, hangMs }
  const url = new URL('./watchdog-thread.js', import.meta.url)
  const worker = new Worker(url, { workerData, execArgv: [], stderr: false })
  worker.unref()
  // If the thread fails, the process just runs unwatched.
  worker.on('error', () => {})
  return () => {
    clearInterval(beating)
    void worker.terminate()
  }
}

/** Notifies systemd, if it started this process and asked for it, that the server listens and is alive. */

/** <sys/socket.h> of Linux. */
const [AF_UNIX, SOCK_DGRAM, SOCK_CLOEXEC, MSG_NOSIGNAL] = [1, 2, 0x80000, 0x4000]
const ADDRESS_BYTES = 110

type Socket = (domain: number, type: number, protocol: number) => number
type SendTo = (
  fd: number,
  text: Uint8Array,
  bytes: bigint,
  flags: number,
  address: Uint8Array,
  addressBytes: number,
) => number

interface Notifier {
  send(state: 'READY=1' | 'WATCHDOG=1'): void
  /** How often systemd expects a sign of life; null: never. */
  readonly watchdogMs: number | null
}

type Variables = Readonly<Record<string, string | undefined>>

/** Throws if the named socket cannot be used. */
export function openNotifier(variables: Variables = process.env): Notifier {
  const { NOTIFY_SOCKET: path, WATCHDOG_USEC, WATCHDOG_PID } = variables
  if (path === undefined || path === '') return { send: () => {}, watchdogMs: null }
  const library = openLibrary('libc.so.6')
  const socket = library.bind<Socket>('socket', 'int32', ['int32', 'int32', 'int32'])
  const types = ['int32', 'pointer', 'uint64', 'int32', 'pointer', 'uint32'] as const
  const sendTo = library.bind<SendTo>('sendto', 'int64', types)
  const fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)
  const address = addressOf(path)
  const isMine = WATCHDOG_PID === undefined || Number(WATCHDOG_PID) === process.pid
  const watchdogMs = Number(WATCHDOG_USEC ?? 0) / 1000
  return {
    send(state) {
      const text = Buffer.from(state)
      sendTo(fd, text, BigInt(text.length), MSG_NOSIGNAL, address, address.length)
    },
    watchdogMs: isMine && watchdogMs > 0 ? watchdogMs : null,
  }
}

/** A sockaddr_un; a name that starts with "@" is in no file system. */
function addressOf(path: string): Uint8Array {
  const name = Buffer.from(path).subarray(0, ADDRESS_BYTES - 2)
  const address = Buffer.alloc(2 + name.length)
  address.writeUInt16LE(AF_UNIX, 0)
  name.copy(address, 2)
  if (path.startsWith('@')) address[2] = 0
  return address
}
