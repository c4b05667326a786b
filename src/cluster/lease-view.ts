/** Whether a lease runs, as all threads of its process see it. */

/** Nanoseconds of the system's clock that nobody sets, the same in all threads. */
export function monotonicNow(): bigint {
  return process.hrtime.bigint()
}

const END = 0
const LAPSES = 1
/** The end of a lease that has not begun, or was given up. */
const NEVER = 0n

export class LeaseView {
  /** i64 [2], shared: the end in nanoseconds, and how often it had passed before it was moved. */
  readonly words: BigInt64Array

  constructor(words: BigInt64Array = new BigInt64Array(new SharedArrayBuffer(16))) {
    this.words = words
  }

  /** By this clock, which began before the database's: never later than there. */
  get isOver(): boolean {
    return monotonicNow() >= Atomics.load(this.words, END)
  }

  get leftMs(): number {
    return Number(Atomics.load(this.words, END) - monotonicNow()) / 1e6
  }

  /** Grows whenever the lease goes on after it was over: others may have had meanwhile what the process had. */
  get numLapses(): number {
    return Number(Atomics.load(this.words, LAPSES))
  }

  /** Who reads the new end reads the new count, too. `wasOver`: by the database's clock, whatever this one says. */
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
