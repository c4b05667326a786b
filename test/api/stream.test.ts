/** Event streams over real sockets: readers that are slow, stop or leave, in every phase. */
import { once } from 'node:events'
import http from 'node:http'
import net, { type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { FastifyInstance } from 'fastify'
import { pino } from 'pino'
import { afterEach, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { limitUnsentBytes } from '../../src/gateway/http/connection.ts'
import { answer, endless } from '../helpers/fake-engine.ts'
import { postJson } from '../helpers/post-json.ts'
import { CHAT, COMPLETIONS, HELLO, serve } from './kit.ts'

const open: FastifyInstance[] = []
afterEach(async () => {
  for (const app of open.splice(0)) {
    app.server.closeAllConnections()
    await app.close()
  }
})

async function listen(...args: Parameters<typeof serve>) {
  const { app, engine } = serve(...args)
  open.push(app)
  await app.listen({ host: '127.0.0.1', port: 0 })
  // Listening on TCP, the address is an object.
  const { port } = app.server.address() as AddressInfo
  return { app, engine, port }
}

function send(port: number, path: string, body: object): http.ClientRequest {
  const headers = { 'content-type': 'application/json' }
  const request = http.request({ port, host: '127.0.0.1', method: 'POST', path, headers })
  request.on('error', () => {})
  request.end(JSON.stringify(body))
  return request
}

/** As long as a test may take: on a busy machine the end of a connection takes seconds. */
const LONG_MS = 55_000

/** Sends bytes; all that comes back until the server closes the connection. */
function talk(port: number, text: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1', () => socket.write(text))
    let reply = ''
    socket.setEncoding('utf8').on('data', (data) => {
      reply += data
    })
    socket.on('close', () => resolve(reply))
    socket.on('error', () => {})
  })
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + LONG_MS
  while (!(await condition())) {
    if (performance.now() > end) throw new Error('waited in vain')
    await delay(5)
  }
}

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

/** Waits for an abort, then ends. */
const untilAborted = (signal: AbortSignal | undefined) =>
  new Promise<void>((resolve) => signal?.addEventListener('abort', () => resolve()))

test('a client that leaves during a stream cancels its request', async () => {
  const { engine, port } = await listen(endless)
  const request = send(port, CHAT, { ...HELLO, stream: true })
  const response = await new Promise<http.IncomingMessage>((resolve) => request.on('response', resolve))
  await new Promise((resolve) => response.once('data', resolve))
  expect(engine.cancelled).toEqual([])
  request.destroy()
  await until(() => engine.cancelled.length === 1)
})

test.each([true, false])('a client that leaves also cancels its pipelined requests (stream: %s)', async (stream) => {
  const lines: string[] = []
  const logger = pino({}, { write: (line: string) => lines.push(line) })
  const { engine, port } = await listen(endless, { logger })
  const body = JSON.stringify({ ...HELLO, stream, max_tokens: 60_000 })
  const head = `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json`
  const client = net.connect(port, '127.0.0.1')
  client.write(`${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`.repeat(3))
  await until(() => engine.requests.length === 3)
  client.destroy()
  await until(() => engine.cancelled.length === 3)
  await until(() => lines.filter((line) => line.includes('"cutOff":true')).length === 3)
})

test.each([true, false])(
  'a client that left while its body was being read gets no answer (stream: %s)',
  async (stream) => {
    // Its own app, because no hook can be added to one that another test has used.
    const { app, engine } = serve(endless, {})
    open.push(app)
    let client: http.ClientRequest | null = null
    // As long as a thread needs for a large body.
    app.addHook('preValidation', async (_, reply) => {
      client!.destroy()
      await until(() => reply.raw.destroyed)
    })
    await app.listen({ host: '127.0.0.1', port: 0 })
    // Listening on TCP, the address is an object.
    const { port } = app.server.address() as AddressInfo
    client = send(port, CHAT, { ...HELLO, stream, max_tokens: 60_000 })
    await until(() => client!.destroyed)
    await delay(200)
    expect(engine.requests.length).toBe(engine.cancelled.length)
  },
)

test('the tokens of an answer are counted as they arrive, also if it is cut off', async () => {
  const { app, engine, port } = await listen(async function* (request, signal) {
    yield { type: 'prompt', id: request.id, logprobs: null }
    for (let i = 0; i < 5; i++)
      yield { type: 'text', id: request.id, index: 0, text: 'a', tokens: [98], logprobs: null }
    await untilAborted(signal)
  })
  const counted = async () =>
    /^skein_generation_tokens_total\{model="goose"\} (\d+)$/m.exec((await app.inject({ url: '/metrics' })).body)?.[1]
  const request = send(port, CHAT, { ...HELLO, stream: true })
  await once(request, 'response')
  await until(async () => (await counted()) === '5')
  request.destroy()
  await until(() => engine.cancelled.length === 1)
  expect(await counted()).toBe('5')
})

test.each([true, false])('the log has requests whose client left (stream: %s)', async (stream) => {
  const lines: string[] = []
  const logger = pino({}, { write: (line: string) => lines.push(line) })
  const { engine, port } = await listen(endless, { logger })
  const request = send(port, CHAT, { ...HELLO, stream, max_tokens: 60_000 })
  if (stream) await once(request, 'response')
  else await until(() => engine.requests.length === 1)
  request.destroy()
  await until(() => engine.cancelled.length === 1)
  const ends = () => lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request')
  await until(() => ends().length > 0)
  await delay(20)
  const status = stream ? 200 : null
  expect(ends()).toMatchObject([{ method: 'POST', route: CHAT, status, cutOff: true }])
})

test.each([true, false])('a client that leaves before the first event cancels (stream: %s)', async (stream) => {
  const { engine, port } = await listen(async function* (_request, signal) {
    await untilAborted(signal)
    yield* []
  })
  const request = send(port, CHAT, { ...HELLO, stream })
  await until(() => engine.requests.length === 1)
  request.destroy()
  await until(() => engine.cancelled.length === 1)
})

test('a client that leaves cancels all prompts of its request, in prefill and in decode', async () => {
  const { engine, port } = await listen(async function* (request, signal) {
    if (request.prompt[0] === 98) yield { type: 'prompt', id: request.id, logprobs: null }
    await untilAborted(signal)
  })
  const request = send(port, COMPLETIONS, { prompt: ['a', 'b', 'c'] })
  await until(() => engine.requests.length === 3)
  request.destroy()
  await until(() => engine.cancelled.length === 3)
})

test('a client that has finished cancels nothing', async () => {
  const { engine, port } = await listen()
  for (const stream of [true, false]) {
    const request = send(port, CHAT, { ...HELLO, stream })
    await new Promise<void>((resolve) =>
      request.on('response', (response) => response.resume().on('end', () => resolve())),
    )
  }
  await delay(20)
  expect(engine.requests).toHaveLength(2)
  expect(engine.cancelled).toEqual([])
})

test('a reader that stops is waited for with a limited buffer, then dropped', async () => {
  let produced = 0
  const limits = { streamBufferBytes: 64 * 1024, streamStallMs: 300 }
  const text = 'x'.repeat(16 * 1024)
  const { engine, port } = await listen(
    async function* (request, signal) {
      for await (const event of endless(request, signal, text)) {
        produced++
        yield event
      }
    },
    { limits },
  )
  const socket = net.connect(port, '127.0.0.1')
  socket.on('error', () => {})
  const body = JSON.stringify({ ...HELLO, stream: true })
  socket.write(
    `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  socket.pause()
  await until(() => produced > 5)
  let before = -1
  // Production stops while the socket is full …
  while (before !== produced) {
    before = produced
    await delay(60)
  }
  // … and stays at the size of the kernel's buffers and ours, far below what 300 ms would have produced.
  expect(produced).toBeLessThan(1000)
  await until(() => engine.cancelled.length === 1)
  socket.destroy()
})

test.runIf(process.platform === 'linux')('a reader that stops costs the kernel no megabytes either', async () => {
  let produced = 0
  const text = 'x'.repeat(8 * 1024)
  const { app, port } = await listen(async function* (request, signal) {
    for await (const event of endless(request, signal, text)) {
      produced++
      yield event
    }
  })
  expect(limitUnsentBytes(app.server)).toBeNull()
  const request = send(port, CHAT, { ...HELLO, stream: true })
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  response.on('error', () => {}).pause()
  let before = -1
  while (before !== produced) {
    before = produced
    await delay(200)
  }
  // 64 KiB in our buffer, 32 in the kernel's, and what the client's side holds. Unlimited it would be 4 MiB more.
  expect(produced * text.length).toBeLessThan(2 ** 20)
  request.destroy()
})

test('a reader that stops just before the last bytes is dropped, too', async () => {
  // One event larger than what any kernel buffers for a socket, and then the stream ends.
  const text = 'Q'.repeat(24 * 2 ** 20)
  const limits = { streamBufferBytes: 64 * 2 ** 20, streamStallMs: 300 }
  const { app, port } = await listen(
    function* ({ id }) {
      yield { type: 'prompt', id, logprobs: null }
      yield { type: 'text', id, index: 0, text, tokens: [1], logprobs: null }
      yield { type: 'finish', id, index: 0, reason: 'stop', matched: 0, completionTokens: 1 }
    },
    { limits },
  )
  const request = send(port, CHAT, { ...HELLO, stream: true })
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  response.on('error', () => {})
  response.pause()
  const connections = () =>
    new Promise<number>((resolve) => app.server.getConnections((_error, count) => resolve(count)))
  expect(await connections()).toBe(1)
  await until(async () => (await connections()) === 0)
})

test.each([0, 200])('a slow reader gets a whole reply: %i kB every 10 ms', async (kilobytes) => {
  const text = 'Q'.repeat(30_000_000)
  const { app, port } = await listen(
    function* (request) {
      const { id } = request
      yield { type: 'prompt', id, logprobs: null }
      yield { type: 'text', id, index: 0, text, tokens: [1], logprobs: null }
      const reason = 'length'
      yield { type: 'finish', id, index: 0, reason, matched: null, completionTokens: 1 }
    },
    { limits: { streamStallMs: 500 } },
  )
  limitUnsentBytes(app.server)
  const body = JSON.stringify({ prompt: 'a', max_tokens: 5 })
  const client = net.connect({ port, host: '127.0.0.1', noDelay: true })
  client.on('error', () => {})
  const head = `POST ${COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json`
  client.write(`${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
  const connections = () =>
    new Promise<number>((resolve) => app.server.getConnections((_error, count) => resolve(count)))
  // A client that reads nothing checks after the server has given up.
  await until(async () => kilobytes > 0 || (await connections()) > 0)
  await until(async () => kilobytes > 0 || (await connections()) === 0)
  let length = 0
  const isThrough = () => length > text.length || client.closed || client.errored !== null
  client.on('data', (bytes) => {
    length += bytes.length
    if (kilobytes === 0) return
    client.pause()
    setTimeout(() => client.resume(), (10 * bytes.length) / (1000 * kilobytes))
  })
  await until(isThrough)
  expect(length > text.length).toBe(kilobytes > 0)
  client.destroy()
})

test.each([false, true])(
  'an answer may take its time between others on its connection (stream: %s)',
  async (stream) => {
    const { port } = await listen(
      async function* (request) {
        await delay(700)
        yield* answer(request, 'so')
      },
      { limits: { streamStallMs: 300 } },
    )
    const quick = 'GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n'
    const body = JSON.stringify({ ...HELLO, stream, max_tokens: 5 })
    const head = `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json`
    const slow = `${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`
    const client = net.connect(port, '127.0.0.1')
    let text = ''
    client.on('data', (bytes) => {
      text += bytes
    })
    client.write(quick + slow + quick)
    const count = () => text.split('HTTP/1.1 200').length - 1
    await until(() => count() === 3 || client.closed)
    expect(count()).toBe(3)
    client.destroy()
  },
)

test.each([1000, 16_384, 100_000])('a slow reader gets everything, %i bytes at a time', async (bytes) => {
  const text = 'Q'.repeat(3000)
  const numEvents = 3000
  const limits = { streamBufferBytes: bytes, streamStallMs: 1000 }
  const { app, engine, port } = await listen(
    function* (request) {
      const [prompt] = answer(request, '')
      yield prompt!
      for (let i = 0; i < numEvents; i++) {
        yield { type: 'text', id: request.id, index: 0, text, tokens: [1], logprobs: null }
      }
      yield {
        type: 'finish',
        id: request.id,
        index: 0,
        reason: 'length',
        matched: null,
        completionTokens: numEvents,
      }
    },
    { limits },
  )
  limitUnsentBytes(app.server)
  const request = send(port, COMPLETIONS, { prompt: 'a', stream: true })
  const response = await new Promise<http.IncomingMessage>((resolve) => request.on('response', resolve))
  let body = ''
  for await (const chunk of response) {
    body += chunk
    await delay(1)
  }
  expect(body.split('Q').length - 1).toBe(numEvents * 3000)
  expect(body.endsWith('data: [DONE]\n\n')).toBe(true)
  expect(engine.cancelled).toEqual([])
})

test.each([
  [CHAT, HELLO],
  [COMPLETIONS, { prompt: 'a' }],
])('sent bytes are not kept: %s', async (path, body) => {
  const [numEvents, numBytes] = [1000, 32 * 1024]
  const heapBytes: number[] = []
  const { port } = await listen(async function* (request) {
    yield* answer({ ...request, n: 0 }, '')
    for (let i = 0; i < numEvents; i++) {
      const text = String(i % 10).repeat(numBytes)
      yield { type: 'text', id: request.id, index: 0, text, tokens: [1], logprobs: null }
      if (i % (numEvents / 2) === 1) {
        await delay(50)
        collectGarbage()
        heapBytes.push(process.memoryUsage().heapUsed)
      }
    }
    const end = { reason: 'length', matched: null, completionTokens: numEvents } as const
    yield { type: 'finish', id: request.id, index: 0, ...end }
  })
  const request = send(port, path, { ...body, stream: true })
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  for await (const _chunk of response);
  const [early = 0, late = 0] = heapBytes
  expect(late - early).toBeLessThan((numEvents / 4) * numBytes)
})

test('pipelined streams arrive completely, one after the other', async () => {
  const { port } = await listen((request) => answer(request, 'ä'.repeat(300)))
  const body = JSON.stringify({ prompt: 'a', stream: true })
  const length = `content-type: application/json\r\ncontent-length: ${body.length}`
  const post = (version: string) => `POST ${COMPLETIONS} HTTP/${version}\r\nhost: localhost\r\n${length}`
  const last = `${post('1.1')}\r\nconnection: close\r\n\r\n${body}`
  const two = await talk(port, `${post('1.1')}\r\n\r\n${body}${last}`)
  expect(two.match(/HTTP\/1.1 200 OK/g)).toHaveLength(2)
  expect(two.match(/ä/g)).toHaveLength(600)
  // Each event is a chunk: a character, the end of the answer, [DONE].
  expect(two.match(/\r\ndata: [^\n]*\n\n\r\n/g)).toHaveLength(2 * 302)
  expect(two.endsWith('\r\n0\r\n\r\n')).toBe(true)
  // A client without chunked encoding gets none.
  const old = await talk(port, `${post('1.0')}\r\n\r\n${body}`)
  expect(old.match(/ä/g)).toHaveLength(300)
  expect(old.endsWith('\n\ndata: [DONE]\n\n')).toBe(true)
})

test.each([
  [COMPLETIONS, { prompt: 'a', stream: true }],
  [CHAT, { ...HELLO, stream: true }],
])('%s: what a turn has for a stream is one write, the last text with the end', async (path, body) => {
  const { app, port } = await listen(async function* (request) {
    for await (const event of answer(request, 'abc')) {
      // The last character and the end come together, all others on their own.
      if (event.type === 'text') await delay(20)
      yield event
    }
  })
  const writes: string[] = []
  app.server.on('connection', (socket: net.Socket) => {
    const { _write, _writev } = socket
    socket._write = (chunk, ...rest) => {
      writes.push(String(chunk))
      _write.call(socket, chunk, ...rest)
    }
    socket._writev = (chunks, done) => {
      writes.push(chunks.map(({ chunk }) => chunk).join(''))
      _writev!.call(socket, chunks, done)
    }
  })
  const [reply] = (await once(send(port, path, body), 'response')) as [http.IncomingMessage]
  for await (const _ of reply);
  const texts = writes.filter((text) => /"(text|content)":"[abc]"/.test(text))
  expect(texts).toHaveLength(3)
  expect(writes.at(-1)).toBe(texts.at(-1))
  expect(texts.at(-1)).toMatch(/"finish_reason":"stop"[\s\S]*data: \[DONE\]\n\n\r\n0\r\n\r\n$/)
})

test('a long silence is filled: white space before JSON, comments before events', async () => {
  let isHeard = () => {}
  const { port } = await listen(
    async function* (request) {
      await new Promise<void>((resolve) => {
        isHeard = resolve
      })
      yield* answer(request, 'late')
    },
    { limits: { keepAliveAfterMs: 30 } },
  )
  for (const stream of [true, false]) {
    const request = send(port, COMPLETIONS, { prompt: 'a', stream })
    // The answer does not begin before its head is here.
    const response = await new Promise<http.IncomingMessage>((resolve) => request.on('response', resolve))
    isHeard()
    expect(response.headers['x-request-id']).toBeDefined()
    let body = ''
    for await (const chunk of response) body += chunk
    if (stream) expect(body.startsWith(': waiting\n\n')).toBe(true)
    else expect(JSON.parse(body).choices[0].text).toBe('late')
  }
})

test('an error after a long silence is still reported', async () => {
  const { port } = await listen(
    async function* (request) {
      await delay(80)
      yield { type: 'error', id: request.id, error: { code: 'queue_full', message: 'full' } }
    },
    { limits: { keepAliveAfterMs: 20 } },
  )
  for (const stream of [true, false]) {
    const request = send(port, COMPLETIONS, { prompt: 'a', stream })
    const response = await new Promise<http.IncomingMessage>((resolve) => request.on('response', resolve))
    let body = ''
    for await (const chunk of response) body += chunk
    const json = stream ? body.split('data: ')[1]! : body
    expect(JSON.parse(json).error.code).toBe('queue_full')
  }
})

test('invalid requests on a socket get a clear answer', async () => {
  const { port } = await listen()
  expect(await talk(port, 'nonsense\r\n\r\n')).toMatch(/^HTTP\/1.1 400 .*"not a valid request"/s)
  const huge = `GET / HTTP/1.1\r\nx: ${'y'.repeat(20_000)}\r\n\r\n`
  expect(await talk(port, huge)).toMatch(/^HTTP\/1.1 431 /)
  const absolute = 'GET http://evil.example/v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n'
  expect(await talk(port, absolute)).toMatch(/^HTTP\/1.1 403 /)
})

test('headers and bodies that do not arrive in time end the connection', async () => {
  const { port } = await listen(undefined, { limits: { headersTimeoutMs: 100, bodyTimeoutMs: 200 } })
  const head = `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`
  const replies = await Promise.all([talk(port, head), talk(port, `${head}content-length: 100\r\n\r\n{`)])
  for (const reply of replies) expect(reply).toMatch(/^HTTP\/1.1 408 /)
})

test('a request that a full engine would refuse is refused before its body; the connection goes on', async () => {
  const { engine, port } = await listen(undefined, {})
  engine.refusal = new SkeinError('queue_full', 'full')
  const socket = net.connect(port, '127.0.0.1')
  let text = ''
  socket.on('data', (bytes) => {
    text += bytes
  })
  const head = (path: string, length: number) =>
    `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${length}\r\n\r\n`
  const body = JSON.stringify({ prompt: 'a'.repeat(300_000) })
  socket.write(head(COMPLETIONS, body.length))
  await until(() => text.includes('"queue_full"'))
  expect(text).toMatch(/^HTTP\/1.1 429 /)
  expect(text.toLowerCase()).toContain('retry-after: 2')
  expect(engine.requests).toHaveLength(0)
  engine.refusal = null
  text = ''
  socket.write(body)
  const short = JSON.stringify({ prompt: 'a' })
  socket.write(head(COMPLETIONS, short.length) + short)
  await until(() => text.includes('Hello, world.'))
  expect(text).toMatch(/^HTTP\/1.1 200 /)
  expect(engine.requests).toHaveLength(1)
  socket.destroy()
})

test('a full engine refuses nothing that does not ask it', async () => {
  const { engine, port } = await listen(undefined, {})
  engine.refusal = new SkeinError('queue_full', 'full')
  const reply = await postJson(`http://127.0.0.1:${port}/tokenize`, { prompt: 'a' })
  expect(reply.status).toBe(200)
})
