import http from 'node:http'
import { afterEach, expect, test, vi } from 'vitest'
import { Metrics, type MetricsServer, startMetricsServer } from '../../src/gateway/figures/metrics.ts'
import { FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'

const open: MetricsServer[] = []
afterEach(async () => {
  for (const server of open.splice(0)) await server.close()
})

function statusOf(
  port: number,
  headers: Record<string, string>,
  path = '/metrics',
  method = 'GET',
): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, path, method, headers, agent: false }
    const request = http.request(options, (response) => resolve(response.resume().statusCode))
    request.on('error', reject).end()
  })
}

test('a page whose name resolves to this machine cannot read metrics', async () => {
  const metrics = new Metrics(fakeRegistry(new FakeEngineClient()))
  const server = await startMetricsServer(metrics, '127.0.0.1', 0, ['scraped.example'])
  open.push(server)
  for (const host of ['127.0.0.1', `localhost:${server.port}`, 'scraped.example'])
    expect(await statusOf(server.port, { host })).toBe(200)
  expect(await statusOf(server.port, { host: 'page.example' })).toBe(403)
  expect(await statusOf(server.port, { host: 'localhost', origin: 'http://page.example' })).toBe(403)
  metrics.dispose()
})

test('a scraper may send a query, or ask for the headers only', async () => {
  const metrics = new Metrics(fakeRegistry(new FakeEngineClient()))
  const server = await startMetricsServer(metrics, '127.0.0.1', 0)
  open.push(server)
  const status = (path: string, method?: string) => statusOf(server.port, {}, path, method)
  expect(await status('/metrics?format=text')).toBe(200)
  expect(await status('/metrics', 'HEAD')).toBe(200)
  expect(await status('/metrics', 'POST')).toBe(404)
  expect(await status('/metrics2')).toBe(404)
  metrics.dispose()
})

test('has the three gauges that other routers use', async () => {
  const client = new FakeEngineClient()
  const stats = { ...client.stats, waiting: 3, running: 2, numSlots: 8 }
  vi.spyOn(client, 'stats', 'get').mockReturnValue(stats)
  const metrics = new Metrics(fakeRegistry(client))
  const server = await startMetricsServer(metrics, '127.0.0.1', 0)
  open.push(server)
  const text = await (await fetch(`http://127.0.0.1:${server.port}/metrics`)).text()
  const gauge = (name: string) => new RegExp(`^${name}{[^}]*} (\\S+)$`, 'm').exec(text)?.[1]
  expect(gauge('skein_num_requests_waiting')).toBe('3')
  expect(gauge('skein_num_requests_running')).toBe('2')
  expect(gauge('skein_slots_in_use_ratio')).toBe('0.25')
  metrics.dispose()
})
