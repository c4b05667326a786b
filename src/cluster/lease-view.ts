/** A lease's state, shared by all threads of its process. */

/** Nanoseconds of the monotonic clock, which is the same in all threads. */
export function monotonicNow(): bigint {
  return process.hrtime.bigint()
}

const END = 0
const LAPSES = 1
/** The end of a lease that has not begun or was given up. */
const NEVER = 0n

export class LeaseView {
  /** i64 [2], shared: the end in nanoseconds, and the number of lapses. */
  readonly words: BigInt64Array

  constructor(words: BigInt64Array = new BigInt64Array(new SharedArrayBuffer(16))) {
    this.words = words
  }

  /** By the local clock, which started before the database's, so never later than there. */
  get isOver(): boolean {
    return monotonicNow() >= Atomics.load(this.words, END)
  }

  /** Grows whenever the lease is extended after it had expired: others may have taken its sessions meanwhile. */
  get numLapses(): number {
    return Number(Atomics.load(this.words, LAPSES))
  }

  /** A reader of the new end also sees the new count. `wasOver`: it had expired by the database's clock. */
  extend(sentAt: bigint, leaseMs: number, wasOver = false): void {
    const end = sentAt + BigInt(leaseMs) * 1_000_000n
    const old = Atomics.load(this.words, END)
    if (end <= old) return
    if (old !== NEVER && (wasOver || this.isOver)) Atomics.add(this.words, LAPSES, 1n)
    Atomics.store(this.words, END, end)
  }

  end(): void {
    Atomics.store(this.words, END, NEVER)
  }
}
