/**
 * What the kernel keeps of a stream that its client does not read. Without a bound Linux takes 4 MB for each, beside what
 * this process knows of. It is Linux's TCP_NOTSENT_LOWAT, which Node has no name for: it bounds what has not been sent,
 * and leaves alone what is on its way, so that files leave as fast as before.
 */

import { openLibrary } from '../../backend/ffi.ts'
import { SkeinError } from '../../errors.ts'

const UNSENT_BYTES = 32 * 1024

/** <netinet/tcp.h> */
const [IPPROTO_TCP, TCP_NOTSENT_LOWAT] = [6, 25]

type SetSocketOption = (fd: number, level: number, name: number, value: Int32Array, bytes: number) => number

/** Connections inherit it from the server, which listens already. Null, or why it cannot be had; other systems have no such bound. */
export function boundUnsentBytes(server: object): string | null {
  if (process.platform !== 'linux') return null
  // Of no interface of Node's, for as long as Node has been there.
  const fd = (server as { _handle?: { fd?: unknown } | null })._handle?.fd
  if (typeof fd !== 'number' || fd < 0) return 'the server has no file descriptor'
  try {
    const types = ['int32', 'int32', 'int32', 'pointer', 'uint32'] as const
    const set = openLibrary('libc.so.6').bind<SetSocketOption>('setsockopt', 'int32', types)
    const value = Int32Array.of(UNSENT_BYTES)
    const status = set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, value, value.byteLength)
    return status === 0 ? null : `setsockopt gave ${status}`
  } catch (error) {
    return SkeinError.from(error).message
  }
}
