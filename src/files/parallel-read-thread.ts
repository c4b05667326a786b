/** Entry of a thread that reads parts of a file on request: see parallel-read.ts. */
import { readSync } from 'node:fs'
import { workerData } from 'node:worker_threads'
import {
  ENDED,
  FAILED,
  IDLE,
  LENGTH,
  OFFSET_HIGH,
  OFFSET_LOW,
  READING,
  type ReadingThread,
  START,
  STARTING,
  STATE,
  waitWhile,
} from './parallel-read.ts'

const { file, mailbox, buffer } = workerData as ReadingThread // given by ParallelReader

// The file may have been closed before this thread started.
Atomics.compareExchange(mailbox, STATE, STARTING, IDLE)
for (let state = waitWhile(mailbox, IDLE); state !== ENDED; state = waitWhile(mailbox, IDLE)) {
  // FAILED is final: from then on the caller reads alone.
  const next = state === READING && isRead() ? IDLE : FAILED
  Atomics.compareExchange(mailbox, STATE, READING, next)
  Atomics.notify(mailbox, STATE)
  if (next === FAILED) break
}

function isRead(): boolean {
  const length = mailbox[LENGTH]!
  const offset = mailbox[OFFSET_HIGH]! * 2 ** 31 + mailbox[OFFSET_LOW]!
  try {
    for (let done = 0; done < length; ) {
      const count = readSync(file, buffer, mailbox[START]! + done, length - done, offset + done)
      if (count === 0) return false
      done += count
    }
    return true
  } catch {
    return false
  }
}
