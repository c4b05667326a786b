/**
 * Reads ranges of a large file with several threads: one copies about 3 GB/s from the page cache or a fast disk, and
 * several reach the limit of either. The caller waits, as for readSync. It knows no format.
 */
import { readSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'

/** The caller reads as well; beyond eight threads, memory is the limit. */
const MAX_THREADS = Math.min(7, availableParallelism() - 1)
/** Below this size, waking a thread takes longer than reading. */
const LEAST_BYTES = 1 << 20
/** The size of the blocks in which weights are read (backend/source-rows.ts). */
const BUFFER_BYTES = 16 << 20

/** Words of a thread's mailbox, in order. */
export const STATE = 0
export const START = 1
export const LENGTH = 2
/** Words of the file offset, which may exceed 2³¹. */
export const OFFSET_LOW = 3
export const OFFSET_HIGH = 4
const WORDS = 5
/** Values of STATE. */
export const STARTING = 0
export const IDLE = 1
export const READING = 2
export const FAILED = 3
export const ENDED = 4

/** Input of a thread. */
export interface ReadingThread {
  readonly file: number
  readonly mailbox: Int32Array<SharedArrayBuffer>
  readonly buffer: Uint8Array<SharedArrayBuffer>
}

/**
 * Waits until the state is another, and returns it. A notification may be late, when who sends it has lost its processor
 * meanwhile, and then ends the next wait, too.
 */
export function waitWhile(mailbox: Int32Array<SharedArrayBuffer>, state: number): number {
  for (;;) {
    const now = Atomics.load(mailbox, STATE)
    if (now !== state) return now
    Atomics.wait(mailbox, STATE, state)
  }
}

export class ParallelReader {
  readonly #file: number
  readonly #mailboxes: Int32Array<SharedArrayBuffer>[] = []
  /** Created on demand, which also starts the threads. */
  #buffer: Uint8Array<SharedArrayBuffer> | null = null

  constructor(file: number) {
    this.#file = file
  }

  /** The memory that the threads can read into; only the first caller gets it. */
  takeBuffer(): Uint8Array | null {
    if (this.#buffer !== null || MAX_THREADS < 1) return null
    this.#buffer = new Uint8Array(new SharedArrayBuffer(BUFFER_BYTES))
    this.#start(this.#buffer)
    return this.#buffer
  }

  /** Starting takes about 50 ms; until then reads do without the thread. */
  #start(buffer: Uint8Array<SharedArrayBuffer>): void {
    const url = new URL('./parallel-read-thread.js', import.meta.url)
    // In the source folder there is no compiled thread.
    const place = import.meta.url.endsWith('.ts') ? url.href.replace('/src/', '/dist/') : url.href
    for (let i = 0; i < MAX_THREADS; i++) {
      const mailbox = new Int32Array(new SharedArrayBuffer(4 * WORDS))
      const workerData: ReadingThread = { file: this.#file, mailbox, buffer }
      const worker = new Worker(new URL(place), { workerData, execArgv: [] })
      // If the threads fail, the caller reads alone.
      worker.on('error', () => {})
      worker.unref()
      this.#mailboxes.push(mailbox)
    }
  }

  /** Fills a target inside the buffer. Returns false if threads are no gain, or if one could not read its part. */
  read(target: Uint8Array, offset: number): boolean {
    const { buffer: memory, byteOffset, byteLength } = target
    if (byteLength < LEAST_BYTES || memory !== this.#buffer?.buffer) return false
    const free = this.#mailboxes.filter((mailbox) => Atomics.load(mailbox, STATE) === IDLE)
    if (free.length === 0) return false
    const share = Math.ceil(byteLength / (free.length + 1))
    const startOf = (i: number) => Math.min(byteLength, i * share)
    for (const [i, mailbox] of free.entries()) {
      const start = startOf(i + 1)
      mailbox[START] = byteOffset + start
      mailbox[LENGTH] = startOf(i + 2) - start
      mailbox[OFFSET_LOW] = (offset + start) % 2 ** 31
      mailbox[OFFSET_HIGH] = Math.floor((offset + start) / 2 ** 31)
      Atomics.store(mailbox, STATE, READING)
      Atomics.notify(mailbox, STATE)
    }
    let own = 0
    try {
      own = readSync(this.#file, target, 0, share, offset)
    } finally {
      // When this returns or throws, no thread is reading.
      for (const mailbox of free) waitWhile(mailbox, READING)
    }
    return own === share && free.every((mailbox) => Atomics.load(mailbox, STATE) === IDLE)
  }

  /** When this returns, no thread reads the file any more. */
  close(): void {
    for (const mailbox of this.#mailboxes) {
      Atomics.store(mailbox, STATE, ENDED)
      Atomics.notify(mailbox, STATE)
    }
    this.#mailboxes.length = 0
  }
}
