import http from 'node:http'
import { afterEach, expect, test } from 'vitest'
import { Metrics } from '../../src/gateway/metrics.ts'
import { type MetricsDoor, openMetricsDoor } from '../../src/gateway/metrics-door.ts'
import { FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'

const open: MetricsDoor[] = []
afterEach(async () => {
  for (const door of open.splice(0)) await door.close()
})

function statusOf(port: number, headers: Record<string, string>): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, path: '/metrics', headers, agent: false }
    http.get(options, (response) => resolve(response.resume().statusCode)).on('error', reject)
  })
}

test('a page whose name resolves to this machine reads no metrics', async () => {
  const metrics = new Metrics(fakeRegistry(new FakeEngineClient()))
  const door = await openMetricsDoor(metrics, '127.0.0.1', 0, ['scraped.example'])
  open.push(door)
  for (const host of ['127.0.0.1', `localhost:${door.port}`, 'scraped.example'])
    expect(await statusOf(door.port, { host })).toBe(200)
  expect(await statusOf(door.port, { host: 'page.example' })).toBe(403)
  expect(await statusOf(door.port, { host: 'localhost', origin: 'http://page.example' })).toBe(403)
  metrics.dispose()
})
