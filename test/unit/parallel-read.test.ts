import { mkdtempSync, openSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { afterAll, beforeAll, expect, test } from 'vitest'
import {
  ENDED,
  IDLE,
  LENGTH,
  ParallelReader,
  READING,
  type ReadingThread,
  STARTING,
  STATE,
  waitWhile,
} from '../../src/files/parallel-read.ts'
import { openFile } from '../../src/model/formats/open-file.ts'
import { ReadBuffer } from '../../src/model/formats/read-buffer.ts'

const MIB = 1 << 20
const path = join(mkdtempSync(join(tmpdir(), 'skein-parallel-')), 'file')
const bytes = Uint8Array.from({ length: 21 * MIB + 5 }, (_, i) => (i * 31 + (i >> 8)) & 255)
const reader = { current: null as ParallelReader | null }

beforeAll(() => {
  writeFileSync(path, bytes)
  reader.current = new ParallelReader(openSync(path, 'r'))
})
afterAll(() => reader.current?.close())

/** Threads take a while to start, longer on a busy machine. */
async function untilRead(threads: ParallelReader, target: Uint8Array, offset: number) {
  for (let tries = 0; tries < 200; tries++) {
    if (threads.read(target, offset)) return
    await sleep(50)
  }
  throw new Error('no thread read')
}

test('several threads read the same as one', async () => {
  const threads = reader.current!
  const buffer = threads.takeBuffer()!
  expect(threads.takeBuffer()).toBeNull()
  for (const [offset, length] of [
    [0, 16 * MIB],
    [3, MIB],
    [5 * MIB + 5, 16 * MIB],
    [1, 7 * MIB + 11],
  ] as const) {
    buffer.fill(0)
    const target = buffer.subarray(9, 9 + length)
    const whole = target.length === length ? target : buffer
    await untilRead(threads, whole, offset)
    const expected = bytes.subarray(offset, offset + whole.length)
    expect(Buffer.compare(whole, expected)).toBe(0)
  }
})

test('a range beyond the end of the file is left to the caller', async () => {
  const threads = new ParallelReader(openSync(path, 'r'))
  const buffer = threads.takeBuffer()!
  await untilRead(threads, buffer, 0)
  expect(threads.read(buffer, bytes.length - MIB)).toBe(false)
  threads.close()
})

test('a late notification does not end a thread', async () => {
  const mailbox = new Int32Array(new SharedArrayBuffer(20))
  const buffer = new Uint8Array(new SharedArrayBuffer(MIB))
  const workerData: ReadingThread = { file: openSync(path, 'r'), mailbox, buffer }
  const thread = new Worker(new URL('../../dist/files/parallel-read-thread.js', import.meta.url), { workerData })
  while (Atomics.load(mailbox, STATE) === STARTING) await sleep(10)
  // As if it came from the request before.
  while (Atomics.notify(mailbox, STATE) === 0) await sleep(10)
  await sleep(100)
  mailbox[LENGTH] = MIB
  Atomics.store(mailbox, STATE, READING)
  Atomics.notify(mailbox, STATE)
  expect(Atomics.wait(mailbox, STATE, READING, 10_000)).not.toBe('timed-out')
  expect(Buffer.compare(buffer, bytes.subarray(0, MIB))).toBe(0)
  Atomics.store(mailbox, STATE, ENDED)
  Atomics.notify(mailbox, STATE)
  await new Promise((resolve) => thread.once('exit', resolve))
})

test('a late notification does not end the wait for one that still reads', () => {
  const mailbox = new Int32Array(new SharedArrayBuffer(20))
  mailbox[STATE] = READING
  const other = `
    const { workerData: mailbox } = require('node:worker_threads')
    for (let woken = 0; woken < 3; ) woken += Atomics.notify(mailbox, ${STATE})
    Atomics.store(mailbox, ${STATE}, ${IDLE})
    Atomics.notify(mailbox, ${STATE})`
  new Worker(other, { eval: true, workerData: mailbox })
  expect(waitWhile(mailbox, READING)).toBe(IDLE)
})

test('small ranges and unshared memory are left to the caller', () => {
  const threads = reader.current!
  expect(threads.read(new Uint8Array(2 * MIB), 0)).toBe(false)
})

test('a file that shrinks during the read is reported as before', async () => {
  const source = openFile(path)
  const memory = source.takeBuffer!()!
  await sleep(500)
  expect(() => source.readInto(memory, bytes.length - MIB)).toThrow(/became shorter/)
  source.close()
})

test('two buffers of a file have their own bytes', () => {
  const source = openFile(path)
  const [first, second] = [new ReadBuffer(source), new ReadBuffer(source)]
  const a = first.read(0, 2 * MIB)
  const b = second.read(MIB, 2 * MIB)
  expect(Buffer.compare(a, bytes.subarray(0, 2 * MIB))).toBe(0)
  expect(Buffer.compare(b, bytes.subarray(MIB, 3 * MIB))).toBe(0)
  // Larger than the shared memory.
  const whole = first.read(0, 20 * MIB)
  expect(Buffer.compare(whole, bytes.subarray(0, 20 * MIB))).toBe(0)
  source.close()
})
