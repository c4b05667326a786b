/** Bodies that are small but become large, or that take long to examine. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test, vi } from 'vitest'
import { endless } from '../helpers/fake-engine.ts'
import { CHAT, COMPLETIONS, HELLO, serve } from './kit.ts'

setFlagsFromString('--expose-gc')
// With the flag, a new context has it.
const collectGarbage = runInNewContext('gc') as () => void

function heapBytes(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed
}

function post(url: string, payload: string, script?: Parameters<typeof serve>[0]) {
  const { app } = serve(script)
  return app.inject({ method: 'POST', url, payload, headers: { 'content-type': 'application/json' } })
}

test.each([
  ['objects', '{},'],
  ['lists', '[],'],
  ['strings', '"",'],
  ['numbers', '1,'],
])('a body of too many %s is refused before it is read to its end', async (_, item) => {
  const items = item.repeat(7_800_000 / item.length)
  for (const field of ['metadata', 'messages', 'logit_bias']) {
    const reply = await post(CHAT, `{"${field}":[${items}0]}`)
    expect(reply.statusCode).toBe(413)
    expect(reply.json().error.message).toMatch(/^the body holds more than \d+ /)
  }
})

test('a body of too many fields is refused in the same way', async () => {
  const fields = (count: number) => Array.from({ length: count }, (_, i) => `"k${i}":0`).join(',')
  expect((await post(CHAT, `{${fields(540_000)}}`)).statusCode).toBe(413)
  expect((await post(CHAT, `{${fields(2000)}}`)).statusCode).toBe(413)
  const { messages } = HELLO
  const some = `{${fields(1000)},"messages":${JSON.stringify(messages)}}`
  expect((await post(CHAT, some)).statusCode).toBe(200)
})

test('the longest conversation and the longest list of token ids are accepted', async () => {
  const part = { type: 'text', text: 'x' }
  const messages = Array.from({ length: 4096 }, () => ({ role: 'user', content: [part] }))
  const reply = await post(CHAT, JSON.stringify({ messages }))
  // The engine of these tests reads 5,000 tokens.
  expect(reply.json().error.message).toContain('5000 tokens')
  const prompt = Array.from({ length: 500_000 }, () => 7)
  const ids = await post(COMPLETIONS, JSON.stringify({ prompt }))
  expect(ids.json().error.message).toContain('5000 tokens')
})

test('a short body of many objects is parsed in a thread, one of text at once', async () => {
  const parse = vi.spyOn(JSON, 'parse')
  const { messages } = HELLO
  const objects = JSON.stringify({ messages, metadata: Array.from({ length: 15_000 }, () => ({})) })
  const text = JSON.stringify({ messages, metadata: 'x'.repeat(45_000) })
  for (const [body, isHere] of [
    [objects, false],
    [text, true],
  ] as const) {
    expect((await post(CHAT, body)).statusCode).toBe(200)
    expect(parse.mock.calls.some(([given]) => given === body)).toBe(isHere)
  }
  parse.mockRestore()
})

test('fields without a schema are not kept while an answer streams', async () => {
  const { app } = serve(endless)
  await app.listen({ host: '127.0.0.1', port: 0 })
  const address = app.server.address() as { readonly port: number }
  const metadata = Array.from({ length: 20_000 }, () => ({}))
  const body = JSON.stringify({ ...HELLO, stream: true, metadata })
  const leaving = new AbortController()
  const before = heapBytes()
  for (let i = 0; i < 100; i++) {
    const reply = await fetch(`http://127.0.0.1:${address.port}${CHAT}`, {
      method: 'POST',
      body,
      headers: { 'content-type': 'application/json' },
      signal: leaving.signal,
    })
    expect(reply.status).toBe(200)
    await reply.body!.getReader().read()
  }
  // If kept, each would take more than a megabyte.
  expect(heapBytes() - before).toBeLessThan(50e6)
  leaving.abort()
  app.server.closeAllConnections()
  await app.close()
})

test('a field that would change the answer is refused, however large its value', async () => {
  for (const value of [[1], [[]], { a: { b: 1 } }, 'x'.repeat(1000), Array(1000).fill({})]) {
    const reply = await post(CHAT, JSON.stringify({ ...HELLO, chat_template_kwargs: value }))
    expect(reply.statusCode).toBe(400)
    expect(reply.json().error.param).toMatch(/^chat_template_kwargs/)
  }
  const off = await post(CHAT, JSON.stringify({ ...HELLO, chat_template_kwargs: {} }))
  expect(off.statusCode).toBe(200)
})
