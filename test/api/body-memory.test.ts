/**
 * How much of the gateway's memory bodies may take at once, over real sockets: for one key, and for callers without
 * one.
 */
import net, { type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { afterEach, expect, test } from 'vitest'
import { endless } from '../helpers/fake-engine.ts'
import { CHAT, HELLO, serve } from './kit.ts'

const KIB = 1024
const LIMITS = { bodyBytes: 64 * KIB, strangerBodyBytes: 16 * KIB, stateBytes: 256 * KIB, callerBytes: 256 * KIB }
const IMPORT = '/v1/sessions/s/import'

const open: FastifyInstance[] = []
const sockets: net.Socket[] = []
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy()
  for (const app of open.splice(0)) {
    app.server.closeAllConnections()
    await app.close()
  }
})

async function listen(...[script, options]: Parameters<typeof serve>) {
  const { app } = serve(script, { keys: ['ann', 'ben'], limits: LIMITS, ...options })
  open.push(app)
  await app.listen({ host: '127.0.0.1', port: 0 })
  // Listening on TCP, the address is an object.
  return (app.server.address() as AddressInfo).port
}

function withPassword(password: string, more: object = {}): string {
  return JSON.stringify({ ...HELLO, password, stream: true, ...more })
}

interface Sent {
  readonly path?: string
  readonly key?: string
  readonly body?: string
  /** The announced length, if it is longer than what is sent; null: a chunked body. */
  readonly length?: number | null
}

/** The status of the reply; null until it arrives. */
function send(port: number, { path = CHAT, key, body = ' ', length = body.length }: Sent) {
  const socket = net.connect(port, '127.0.0.1')
  sockets.push(socket)
  let text = ''
  socket.on('data', (bytes) => {
    text += bytes
  })
  socket.on('error', () => {})
  const type = path === IMPORT ? 'application/octet-stream' : 'application/json'
  socket.write(`POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: ${type}\r\n`)
  if (key !== undefined) socket.write(`authorization: Bearer ${key}\r\n`)
  if (length === null) socket.write(`transfer-encoding: chunked\r\n\r\n${chunk(body)}`)
  else socket.write(`content-length: ${length}\r\n\r\n${body}`)
  const status = () => Number(/^HTTP\/1.1 (\d+)/.exec(text)?.[1] ?? 0) || null
  return { socket, status }
}

function chunk(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}

/** Sends incomplete requests until one is refused; returns how many were accepted. */
async function fill(port: number, sent: Sent): Promise<number> {
  for (let count = 1; count < 100; count++) {
    const { status } = send(port, sent)
    await expect
      .poll(status, { timeout: 100 })
      .not.toBeNull()
      .catch(() => {})
    if (status() === null) continue
    expect(status()).toBe(429)
    return count
  }
  throw new Error('nothing is ever refused')
}

test('states that one key sends take only its share, and other keys have theirs', async () => {
  const port = await listen()
  const state = { path: IMPORT, body: 'x'.repeat(100 * KIB), length: 101 * KIB }
  expect(await fill(port, { ...state, key: 'ann' })).toBe(3)
  expect(await fill(port, { ...state, key: 'ben' })).toBe(3)
})

test('bodies that were cancelled or answered take no memory', async () => {
  const port = await listen()
  const state = { path: IMPORT, key: 'ann', length: 256 * KIB }
  for (let i = 0; i < 5; i++) {
    const { socket, status } = send(port, state)
    await expect
      .poll(status, { timeout: 50 })
      .not.toBeNull()
      .catch(() => {})
    expect(status()).toBeNull()
    socket.destroy()
    await delay(20)
    // It is read; the engine of these tests has no import.
    const whole = 'x'.repeat(256 * KIB)
    await expect.poll(send(port, { ...state, body: whole }).status).toBe(500)
  }
})

test('announced bytes take no memory, on any number of connections', async () => {
  const port = await listen()
  for (let i = 0; i < 64; i++) send(port, { length: 15 * KIB })
  for (let i = 0; i < 64; i++) send(port, { path: IMPORT, key: 'ann', length: 256 * KIB })
  await delay(100)
  const body = JSON.stringify({ ...HELLO, max_tokens: 1 })
  await expect.poll(send(port, { body: withPassword('ann') }).status).toBe(200)
  await expect.poll(send(port, { key: 'ann', body }).status).toBe(200)
})

test('callers of one address without a key share a small part, separate from others', async () => {
  const port = await listen()
  expect(await fill(port, { body: `"${'x'.repeat(10 * KIB)}`, length: 15 * KIB })).toBe(4)
  await expect.poll(send(port, { key: 'ann', body: JSON.stringify(HELLO) }).status).toBe(200)
})

test('the body of a caller without a key is not read further, unless it contains the key', async () => {
  const port = await listen(undefined, { limits: { ...LIMITS, bodyBytes: 1024 * KIB } })
  const rest = 'x'.repeat(200 * KIB)
  const status = (body: string) => expect.poll(send(port, { body }).status)
  await status(JSON.stringify({ user: rest, ...HELLO, password: 'ann' })).toBe(401)
  await status(JSON.stringify({ password: 'eve', ...HELLO, user: rest })).toBe(401)
  await status(JSON.stringify({ password: 'ann', ...HELLO, user: rest })).toBe(200)
  await status(JSON.stringify({ ...HELLO, password: 'ann', user: rest })).toBe(200)
  await status(JSON.stringify({ password: 'eve', ...HELLO, user: rest, x: rest })).toBe(401)
  // The value of another field, and a field of another object.
  await status(JSON.stringify({ user: 'password', x: 'ann', ...HELLO, y: rest })).toBe(401)
  await status(JSON.stringify({ metadata: { password: 'ann' }, ...HELLO, y: rest })).toBe(401)
  await status(JSON.stringify({ ...HELLO, user: rest }).replace(/}$/, '')).toBe(401)
})

test('a body that contains the key counts for that key', async () => {
  const port = await listen(endless)
  for (let i = 0; i < 3; i++) {
    const { status } = send(port, { body: withPassword('ann', { user: 'x'.repeat(20 * KIB) }) })
    await expect.poll(status).toBe(200)
  }
  const body = 'x'.repeat(100 * KIB)
  expect(await fill(port, { key: 'ann', path: IMPORT, body, length: 101 * KIB })).toBe(2)
})

test('the parsed size of a body counts, not only its bytes', async () => {
  const port = await listen(endless)
  // At least 60 bytes of memory for each of two.
  const user = JSON.stringify({ ...HELLO, metadata: Array(1500).fill({}) })
  const first = send(port, { key: 'ann', body: user })
  const second = send(port, { key: 'ann', body: user })
  await expect.poll(send(port, { key: 'ann', body: user }).status).toBe(429)
  const ofBen = send(port, { key: 'ben', body: user })
  await delay(50)
  expect([first, second, ofBen].map(({ status }) => status())).toEqual([null, null, null])
})

test('a body that is announced to be larger than what is left is refused before it is read', async () => {
  const port = await listen()
  const first = send(port, { key: 'ann', path: IMPORT, body: 'x'.repeat(200 * KIB), length: 201 * KIB })
  await delay(50)
  // None of it has come.
  await expect.poll(send(port, { key: 'ann', path: IMPORT, body: '', length: 60 * KIB }).status).toBe(429)
  const fits = send(port, { key: 'ann', path: IMPORT, body: '', length: 50 * KIB })
  const ofBen = send(port, { key: 'ben', path: IMPORT, body: '', length: 200 * KIB })
  await delay(50)
  expect([first, fits, ofBen].map(({ status }) => status())).toEqual([null, null, null])
})

test('a chunked body takes the memory of what has arrived, not of what might come', async () => {
  const port = await listen()
  const state = { key: 'ann', path: IMPORT, length: null }
  const body = JSON.stringify({ ...HELLO, max_tokens: 1 })
  for (let i = 0; i < 3; i++) {
    const importing = send(port, state)
    await delay(20)
    await expect.poll(send(port, { key: 'ann', body }).status).toBe(200)
    // A single body may have any length.
    for (let sent = 0; sent < 4; sent++) importing.socket.write(chunk('x'.repeat(63 * KIB)))
    await delay(50)
    expect(importing.status()).toBeNull()
    const other = { key: 'ann', body: `"${'x'.repeat(60 * KIB)}`, length: 61 * KIB }
    const { status } = send(port, other)
    await expect.poll(status).toBe(429)
    if (i === 0) importing.socket.destroy()
    else importing.socket.write('0\r\n\r\n')
    if (i > 0) await expect.poll(importing.status).toBe(500)
    await delay(20)
  }
})

test('whose large bodies are refused one after the other waits with the next, others do not', async () => {
  const port = await listen(undefined, { limits: { ...LIMITS, bodyBytes: 128 * KIB } })
  const [small, large] = [JSON.stringify(HELLO), JSON.stringify(HELLO).padEnd(100 * KIB)]
  const took = async (key: string, body: string, status: number) => {
    const began = performance.now()
    await expect.poll(send(port, { key, body }).status, { timeout: 5000, interval: 5 }).toBe(status)
    return performance.now() - began
  }
  const refused = async (count: number) => {
    for (let i = 0; i < count; i++) expect(await took('ann', '['.repeat(100 * KIB), 400)).toBeLessThan(500)
  }
  await refused(31)
  expect(await took('ann', large, 200)).toBeLessThan(500)
  await refused(32)
  const waits = took('ann', large, 200)
  expect(await took('ann', small, 200)).toBeLessThan(500)
  expect(await took('ben', large, 200)).toBeLessThan(500)
  expect(await waits).toBeGreaterThan(900)
  expect(await took('ann', large, 200)).toBeLessThan(500)
})
