/**
 * The memory that an engine shares with its grammar threads: for each row the allowed and the required next tokens. The
 * thread writes a row, then its turn; the engine reads a row once it has the expected turn.
 */
export const MAX_FORCED = 64
/** Maximum threads that follow answers: most of them, and those of slow grammars. */
export const [MAX_QUICK, MAX_SLOW] = [4, 2]
/** Columns of a row's header, before its forced tokens. */
const TURN = 0
const STATUS = 1
const NUM_FORCED = 2
/** Milliseconds that the turn took. */
const TOOK = 3
const HEADER = 4
const SIGNALS = 1 + MAX_QUICK + MAX_SLOW

/** 'failed': the row has no mask, and its answer cannot continue. */
type RowStatus = 'open' | 'failed'

export class SharedMasks {
  readonly memory: SharedArrayBuffer
  readonly #words: number
  /** [0]: number of writes by threads; [1 + t]: the turn that thread t works on. */
  readonly #signal: Int32Array
  readonly #headers: Int32Array
  readonly #masks: Uint32Array

  constructor(numRows: number, words: number, memory?: SharedArrayBuffer) {
    const width = HEADER + MAX_FORCED
    this.memory = memory ?? new SharedArrayBuffer(4 * (SIGNALS + numRows * (width + words)))
    this.#words = words
    this.#signal = new Int32Array(this.memory, 0, SIGNALS)
    this.#headers = new Int32Array(this.memory, 4 * SIGNALS, numRows * width)
    this.#masks = new Uint32Array(this.memory, 4 * (SIGNALS + numRows * width))
  }

  /** Number of writes. */
  get signal(): number {
    return Atomics.load(this.#signal, 0)
  }

  /** The turn that a thread works on; 0 for none. */
  busyTurnOf(thread: number): number {
    return Atomics.load(this.#signal, 1 + thread)
  }

  setBusyTurn(thread: number, turn: number): void {
    Atomics.store(this.#signal, 1 + thread, turn)
  }

  /** Waits for a write after `signal`, or until the time is over. */
  wait(signal: number, ms: number): void {
    Atomics.wait(this.#signal, 0, signal, ms)
  }

  turnOf(row: number): number {
    return Atomics.load(this.#headers, this.#at(row) + TURN)
  }

  statusOf(row: number): RowStatus {
    return this.#headers[this.#at(row) + STATUS] === 0 ? 'open' : 'failed'
  }

  /** Milliseconds that its last turn took, without those of its first. */
  msOf(row: number): number {
    return this.#headers[this.#at(row) + TOOK]!
  }

  forcedOf(row: number): number[] {
    const at = this.#at(row)
    const count = this.#headers[at + NUM_FORCED]!
    return [...this.#headers.subarray(at + HEADER, at + HEADER + count)]
  }

  maskOf(row: number): Uint32Array {
    return this.#masks.subarray(row * this.#words, (row + 1) * this.#words)
  }

  write(row: number, turn: number, status: RowStatus, forced: readonly number[], ms: number): void {
    const at = this.#at(row)
    this.#headers[at + TOOK] = ms
    this.#headers[at + STATUS] = status === 'open' ? 0 : 1
    this.#headers[at + NUM_FORCED] = forced.length
    this.#headers.set(forced, at + HEADER)
    Atomics.store(this.#headers, at + TURN, turn)
  }

  notify(): void {
    Atomics.add(this.#signal, 0, 1)
    Atomics.notify(this.#signal, 0)
  }

  #at(row: number): number {
    return row * (HEADER + MAX_FORCED)
  }
}
