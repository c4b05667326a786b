/**
 * Limits what the kernel buffers of a stream that its client does not read. By default Linux takes 4 MB per connection,
 * which this process does not see. The limit is Linux's TCP_NOTSENT_LOWAT, for which Node has no API. It covers only
 * bytes that have not been sent, so files are sent as fast as before.
 */

import { openLibrary } from '../../backend/ffi.ts'
import { SkeinError } from '../../errors.ts'

const UNSENT_BYTES = 32 * 1024

/** <netinet/tcp.h> */
const [IPPROTO_TCP, TCP_NOTSENT_LOWAT] = [6, 25]

type SetSocketOption = (fd: number, level: number, name: number, value: Int32Array, bytes: number) => number

/** Sets the limit on the listening server; connections inherit it. Returns null, or why it failed. */
export function limitUnsentBytes(server: object): string | null {
  if (process.platform !== 'linux') return null
  // Not in Node's public interface, but there since Node's first releases.
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
