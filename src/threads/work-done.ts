/**
 * What shows a watchdog that this process works although its event loop does not turn: pieces of a long computation, and
 * calls that are known to take long. Kernels of the CPU count their own pieces.
 */

/** i32 [2]: pieces done; long calls that run now. Pages that share no memory have no watchdog either. */
export const workDone: Int32Array = new Int32Array(
  typeof SharedArrayBuffer === 'undefined' ? new ArrayBuffer(8) : new SharedArrayBuffer(8),
)

/** A piece of a computation, of at most a second or so, is done. */
export function countPiece(): void {
  workDone[0]!++
}

/** Runs what may take a minute and reports nothing, such as a compiler. */
export function longCall<T>(call: () => T): T {
  workDone[1]!++
  try {
    return call()
  } finally {
    workDone[1]!--
  }
}
