/**
 * The event stream of the management API with a watcher that reads, one that reads slowly, and one that does not read.
 */
import { createServer, type Server, type ServerResponse } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import type { FastifyReply } from 'fastify'
import { afterEach, expect, test } from 'vitest'
import { createAuth } from '../../../src/gateway/access/auth.ts'
import { KeyIndex, type NamedKeys } from '../../../src/gateway/access/key-index.ts'
import { addKey, NO_LIMITS } from '../../../src/gateway/access/keys.ts'
import { Feed, Feeds } from '../../../src/gateway/management/streams.ts'

const BUFFER_BYTES = 64 * 1024
/** Longer than a process waits for its turn on a busy machine. */
const PATIENT_MS = 60_000

let server: Server
afterEach(() => server.close())

/** A watcher, and the response to it. */
async function answered(): Promise<{ response: ServerResponse; socket: Socket }> {
  return new Promise((resolve) => {
    server = createServer((_request, response) => resolve({ response, socket }))
    let socket: Socket
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo
      socket = connect(port, '127.0.0.1')
      socket.on('error', () => {})
      socket.write('GET / HTTP/1.1\r\nhost: x\r\n\r\n')
    })
  })
}

const boundsOf = (streamStallMs: number) => ({ streamBufferBytes: BUFFER_BYTES, streamStallMs })

/** The watcher is disconnected when it has read nothing for this long. */
async function watched(streamStallMs: number) {
  const { response, socket } = await answered()
  return { feed: new Feed(response, { 'x-test': 'yes' }, boundsOf(streamStallMs)), response, socket }
}

const SAMPLE = { type: 'sample', sample: 'x'.repeat(16_000) }

test('events have a type, and everything else as data', async () => {
  const { feed, socket } = await watched(PATIENT_MS)
  let text = ''
  socket.on('data', (data) => {
    text += data
  })
  expect(feed.send({ type: 'log', ...{ line: 'a\nb' } })).toBe(true)
  feed.end()
  await expect.poll(() => text).toContain('0\r\n\r\n')
  expect(text).toContain('content-type: text/event-stream')
  expect(text).toContain('x-test: yes')
  expect(text).toContain('event: log\ndata: {"line":"a\\nb"}\n\n')
  expect(feed.isOver).toBe(true)
})

test('a watcher that does not read misses events, then is disconnected; its buffer is bounded', async () => {
  const { feed, response, socket } = await watched(300)
  socket.pause()
  let most = 0
  let isOver = false
  feed.onClose(() => {
    isOver = true
  })
  const begun = performance.now()
  while (!isOver && performance.now() - begun < 20_000) {
    feed.send(SAMPLE)
    most = Math.max(most, response.writableLength)
    await new Promise((resolve) => setImmediate(resolve))
  }
  expect(isOver).toBe(true)
  expect(feed.send(SAMPLE)).toBe(false)
  expect(most).toBeLessThan(BUFFER_BYTES + 2 * 16_000)
})

test('a watcher that catches up in time continues', async () => {
  const { feed, socket } = await watched(PATIENT_MS)
  socket.pause()
  while (feed.send(SAMPLE)) await new Promise((resolve) => setImmediate(resolve))
  socket.resume()
  await expect.poll(() => feed.send(SAMPLE)).toBe(true)
  expect(feed.isOver).toBe(false)
  socket.destroy()
  await expect.poll(() => feed.isOver).toBe(true)
})

test('a feed that another member of a cluster has let in goes on until its key is revoked', async () => {
  const { response } = await answered()
  const asked = { name: 'ops', role: 'operator', expiresAt: null, limits: NO_LIMITS } as const
  const { keys, key } = addKey([], asked, Date.now())
  const index = new KeyIndex()
  index.replace(keys)
  // Feeds only look keys up.
  const auth = createAuth([], index as unknown as NamedKeys)
  const reply = { raw: response, hijack() {}, getHeaders: () => ({}) } as unknown as FastifyReply
  const principal = { tenant: key.id, ...asked }
  const feed = new Feeds(auth, boundsOf(PATIENT_MS)).open({ headers: {}, member: { principal, mayTake: false } }, reply)
  await new Promise((resolve) => setTimeout(resolve, 2500))
  expect(feed.isOver).toBe(false)
  index.replace([])
  await expect.poll(() => feed.isOver, { timeout: 5000 }).toBe(true)
})
