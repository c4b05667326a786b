/** What bodies may take of the gateway's memory at once, over real sockets: for one key, and for all who have shown none. */
import net, { type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { afterEach, expect, test } from 'vitest'
import { endless } from '../helpers/fake-engine.ts'
import { CHAT, HELLO, serve } from './kit.ts'

const KIB = 1024
const LIMITS = { bodyBytes: 64 * KIB, stateBytes: 256 * KIB, callerBytes: 256 * KIB }
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

interface Sent {
  readonly path?: string
  readonly key?: string
  readonly body?: string
  /** Of the body, when it is longer than what is sent of it; null: it comes in chunks. */
  readonly length?: number | null
}

/** The status of the reply; null when there is none yet. */
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

/** Requests whose bodies are not there yet, until the last is refused; how many that took. */
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

test('states that one key sends take no more than its part, and other keys have theirs', async () => {
  const port = await listen()
  const state = { path: IMPORT, length: 100 * KIB }
  expect(await fill(port, { ...state, key: 'ann' })).toBe(3)
  expect(send(port, { ...HELLO, key: 'ann', length: 60 * KIB }).status()).toBeNull()
  expect(await fill(port, { ...state, key: 'ben' })).toBe(3)
})

test('what has left or has been answered takes nothing', async () => {
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
    // It is read; the engine of these tests imports nothing.
    const whole = 'x'.repeat(256 * KIB)
    await expect.poll(send(port, { ...state, body: whole }).status).toBe(500)
  }
})

test('all who have shown no key share one small part, and keep none of the others from theirs', async () => {
  const port = await listen()
  expect(await fill(port, { length: 16 * KIB })).toBe(3)
  const body = JSON.stringify({ ...HELLO, max_tokens: 1 })
  await expect.poll(send(port, { key: 'ann', body }).status).toBe(200)
})

test('a body with the key in it counts for that key, one in chunks for what it has', async () => {
  const port = await listen(endless)
  const body = (password: string) =>
    JSON.stringify({ ...HELLO, password, stream: true, user: 'x'.repeat(20 * KIB) })
  for (const length of [undefined, undefined, undefined, null, null, null]) {
    const { socket, status } = send(port, {
      body: body('ann'),
      ...(length === null ? { length } : {}),
    })
    if (length === null) socket.write('0\r\n\r\n')
    await expect.poll(status).toBe(200)
  }
  expect(await fill(port, { key: 'ann', path: IMPORT, length: 100 * KIB })).toBe(2)
  // 6 · 20 kB and a state's 100 are there.
  const chunked = send(port, { key: 'ann', length: null, body: 'x'.repeat(20 * KIB) })
  await delay(50)
  expect(chunked.status()).toBeNull()
  chunked.socket.write(chunk('x'.repeat(40 * KIB)))
  await expect.poll(chunked.status).toBe(429)
})

test('a body in chunks takes what has come of it, and nothing of what could', async () => {
  const port = await listen()
  const state = { key: 'ann', path: IMPORT, length: null }
  const body = JSON.stringify({ ...HELLO, max_tokens: 1 })
  for (let i = 0; i < 3; i++) {
    const importing = send(port, state)
    await delay(20)
    await expect.poll(send(port, { key: 'ann', body }).status).toBe(200)
    // One alone may be as long as any.
    for (let sent = 0; sent < 4; sent++) importing.socket.write(chunk('x'.repeat(63 * KIB)))
    await delay(50)
    expect(importing.status()).toBeNull()
    const { status } = send(port, { ...HELLO, key: 'ann', length: 60 * KIB })
    await expect.poll(status).toBe(429)
    if (i === 0) importing.socket.destroy()
    else importing.socket.write('0\r\n\r\n')
    if (i > 0) await expect.poll(importing.status).toBe(500)
    await delay(20)
  }
})
