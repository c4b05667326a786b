import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { childrenOf, type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'

let server: RunningServer
beforeAll(async () => {
  server = await serve()
})
afterAll(async () => {
  await server.stop()
})

async function startStream(): Promise<ReadableStreamDefaultReader<Uint8Array>> {
  const response = await postJson(`${server.url}/v1/completions`, {
    prompt: 'Once',
    stream: true,
    max_tokens: 4000,
    ignore_eos: true,
  })
  expect(response.status).toBe(200)
  const reader = response.body!.getReader()
  await reader.read()
  return reader
}

async function rest(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<string> {
  const decoder = new TextDecoder()
  let text = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return text
    text += decoder.decode(value, { stream: true })
  }
}

async function readiness(): Promise<number> {
  return (await fetch(`${server.url}/readyz`)).status
}

test('a killed worker costs each of its streams one clear error, and nothing else', async () => {
  expect(await readiness()).toBe(200)
  const streams = await Promise.all([startStream(), startStream(), startStream()])
  const [worker] = await childrenOf(server.process.pid!)
  const killed = performance.now()
  process.kill(worker!, 'SIGKILL')

  for (const text of await Promise.all(streams.map(rest))) {
    const last = text.trim().split('\n').at(-1)!
    expect(JSON.parse(last.replace('data: ', ''))).toMatchObject({
      error: { message: expect.stringContaining('worker') },
    })
  }
  expect(performance.now() - killed).toBeLessThan(2000)

  while ((await readiness()) !== 200) await delay(20)
  const answer = await postJson(`${server.url}/v1/completions`, { prompt: 'Once', max_tokens: 5 })
  expect(answer.status).toBe(200)
  const [next] = await childrenOf(server.process.pid!)
  expect(next).not.toBe(worker)
})

test('a client that leaves frees its slot', async () => {
  const reader = await startStream()
  await reader.cancel()
  const running = async () => {
    const metrics = await (await fetch(`${server.url}/metrics`)).text()
    return Number(/^skein_num_requests_running\{[^}]*\} (\d+)/m.exec(metrics)![1])
  }
  while ((await running()) > 0) await delay(20)
})
