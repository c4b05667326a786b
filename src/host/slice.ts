/**
 * How soon Linux gives the gateway's event loop a core, where threads that compute hold all of them. Since 6.12 the scheduler
 * lets a thread run for a slice of its own choice, and the one with the shortest goes first as long as it has not had more
 * than its part. Other systems are left as they are.
 */
import { readdirSync } from 'node:fs'
import { getPriority } from 'node:os'
import { openLibrary } from '../backend/ffi.ts'

/** Linux's least; usual are 1.4 to 3 ms. What the loop does for one client or one message takes less. */
const SHORT_NS = 100_000n
/** `sched_setattr`, which the C library has not had for long. */
const CALL_NUMBER: Partial<Record<NodeJS.Architecture, number>> = { x64: 314, arm64: 274 }
/** SCHED_FLAG_KEEP_POLICY */
const KEEP_POLICY = 8n

type SystemCall = (number: number, thread: number, attributes: Uint8Array, flags: number) => number

/** Of the calling thread, and of those that it starts from then on. */
export function shortenSlice(): void {
  setSlices(() => [process.pid], SHORT_NS)
}

/** Of all threads of this process: a process has its parent's slice. */
export function usualSlices(): void {
  setSlices(() => readdirSync('/proc/self/task').map(Number), 0n)
}

function setSlices(threadsOf: () => readonly number[], ns: bigint): void {
  const number = process.platform === 'linux' ? CALL_NUMBER[process.arch] : undefined
  if (number === undefined) return
  try {
    const types = ['int64', 'int64', 'pointer', 'int64'] as const
    const call = openLibrary('libc.so.6').bind<SystemCall>('syscall', 'int64', types)
    for (const thread of threadsOf()) call(number, thread, attributesOf(thread, ns), 0)
  } catch {
    // Another C library, no /proc, or a thread that has ended.
  }
}

/** struct sched_attr: size and policy, flags, priority (which is set as well), slice, deadline and period. */
function attributesOf(thread: number, ns: bigint): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(48))
  bytes.setUint32(0, 48, true)
  bytes.setBigUint64(8, KEEP_POLICY, true)
  bytes.setInt32(16, getPriority(thread), true)
  bytes.setBigUint64(24, ns, true)
  return new Uint8Array(bytes.buffer)
}
