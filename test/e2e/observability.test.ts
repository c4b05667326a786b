/**
 * A real server as other tools see it: metrics on a separate port, traces at a collector, and the names of the
 * dashboard.
 */
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { serve } from '../helpers/cli.ts'

interface Span {
  readonly name: string
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly attributes: readonly { readonly key: string; readonly value: Record<string, unknown> }[]
  readonly events?: readonly { readonly name: string }[]
}

/** Accepts what an OTLP exporter sends as JSON. */
async function startCollector() {
  const spans: Span[] = []
  const bodies: string[] = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (data) => {
      body += data
    })
    request.on('end', () => {
      bodies.push(body)
      const { resourceSpans } = JSON.parse(body)
      for (const { scopeSpans } of resourceSpans) for (const scope of scopeSpans) spans.push(...scope.spans)
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}`, spans, bodies, close: () => server.close() }
}

const freePort = async () => {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

const TRACE = '0af7651916cd43dd8448eb211c80319c'

test('metrics without a key, and traces without prompt text', async () => {
  const [collector, port] = [await startCollector(), await freePort()]
  const flags = ['--metrics-port', String(port), '--trace-endpoint', collector.url]
  const server = await serve([...flags, '--api-key', 'secret', '--no-store'])
  const headers = { 'content-type': 'application/json', authorization: 'Bearer secret' }
  const reply = await fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { ...headers, traceparent: `00-${TRACE}-b7ad6b7169203331-01` },
    body: JSON.stringify({
      messages: [{ role: 'user', content: 'What is the capital of France?' }],
      temperature: 0,
      max_tokens: 20,
    }),
  })
  expect(reply.status).toBe(200)

  const leaving = new AbortController()
  const cut = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ prompt: 'a', stream: true, ignore_eos: true, max_tokens: 60_000 }),
    signal: leaving.signal,
  })
  await cut.body!.getReader().read()
  leaving.abort()

  expect((await fetch(`${server.url}/metrics`)).status).toBe(401)
  const scrape = await fetch(`http://127.0.0.1:${port}/metrics`)
  expect(scrape.status).toBe(200)
  expect((await fetch(`http://127.0.0.1:${port}/v1/models`)).status).toBe(404)
  const figures = await scrape.text()
  expect(figures).toMatch(/^skein_generation_tokens_total\{model="demo"\} [1-9]/m)

  expect(await server.stop()).toBe(0)
  collector.close()
  const request = collector.spans.find(({ name }) => name === 'POST /v1/chat/completions')!
  const answer = collector.spans.find(({ name }) => name === 'generate demo')!
  expect(request).toMatchObject({ traceId: TRACE, parentSpanId: 'b7ad6b7169203331' })
  expect(answer).toMatchObject({ traceId: TRACE, parentSpanId: request.spanId })
  const attribute = (key: string) => answer.attributes.find((one) => one.key === key)?.value
  expect(attribute('gen_ai.usage.output_tokens')).toEqual({ intValue: 8 })
  expect(answer.events?.map(({ name }) => name)).toEqual(['prompt read', 'first text'])
  expect(collector.bodies.join()).not.toMatch(/capital|France|Paris|secret/)

  const left = collector.spans.find(({ name }) => name === 'POST /v1/completions')!
  expect(left.events?.map(({ name }) => name)).toEqual(['cut off'])
  const leftAnswer = collector.spans.find(({ parentSpanId }) => parentSpanId === left.spanId)!
  const numDrawn = leftAnswer.attributes.find(({ key }) => key === 'gen_ai.usage.output_tokens')
  expect(Number(numDrawn?.value.intValue)).toBeGreaterThan(0)

  const dashboard = readFileSync(join(import.meta.dirname, '../../deploy/grafana-dashboard.json'), 'utf8')
  // Histograms are listed by their buckets; a machine without GPUs has none of theirs.
  const names = new Set(dashboard.match(/\b(?:skein|nodejs|process)_[a-z0-9_]+/g))
  expect(names.size).toBeGreaterThan(25)
  for (const name of names) {
    const metric = name.replace(/_bucket$/, '')
    expect(figures, metric).toContain(`# TYPE ${metric} `)
  }
})

test('an invalid address is refused before anything starts', async () => {
  await expect(serve(['--trace-endpoint', 'nowhere'])).rejects.toThrow(
    '--trace-endpoint takes the address of a collector',
  )
})
