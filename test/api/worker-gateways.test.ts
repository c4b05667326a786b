/** The gateway of one worker: its replies while the worker serves, stops and has ended. Workers are scripted. */
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { expect, test } from 'vitest'
import { buildApp, createShared } from '../../src/gateway/app.ts'
import { Metrics } from '../../src/gateway/figures/metrics.ts'
import type { FleetWorker } from '../../src/gateway/fleet/fleet-worker.ts'
import { DEFAULT_SPEC } from '../../src/gateway/fleet/launch.ts'
import { createRegistry } from '../../src/gateway/routing/registry.ts'
import { endless } from '../helpers/fake-engine.ts'
import { hosted, managementOf } from './hosted.ts'
import { postTo } from './kit.ts'

const COMMON = { keys: [], host: '127.0.0.1', version: '1' }

function withGateways() {
  const { fleet, host, handles, folder } = hosted()
  const gateways: FastifyInstance[] = []
  const metrics = new Metrics(fleet.registry, fleet)
  const common = { ...COMMON, metrics, shared: createShared() }
  const openGateway = (worker: FleetWorker) => {
    const { tokenizer } = worker
    const models = createRegistry([{ id: 'm', tokenizer, source: fleet.routerTo(worker) }])
    const gateway = buildApp({ ...common, models })
    gateways.push(gateway)
    return gateway
  }
  const startStates = [{ name: 'tuned', path: 'state.pth' }]
  const launch = { id: 'm', file: join(folder, 'a.pth'), quant: null, startStates, vocab: null }
  const options = { metrics, openGateway }
  const management = managementOf(fleet, (spec) => ({ ...launch, spec }), options)
  const app = buildApp({ ...common, models: host.registry, admin: host, management })
  return { app, management, gateways, handles }
}

test('the gateway of a draining worker is not ready, and disappears when the worker has ended', async () => {
  const { app, management, gateways, handles } = withGateways()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  const at = `/api/workers/${id}/proxy`
  const ask = () => postTo(app, `${at}/v1/completions`, { prompt: 'x' })
  const isReady = async () => (await app.inject({ url: `${at}/readyz` })).statusCode
  await expect.poll(isReady).toBe(200)
  expect((await ask()).statusCode).toBe(200)

  handles[0]!.client!.running = 1
  management.stop(id)
  expect(await isReady()).toBe(503)
  const refused = await ask()
  expect([refused.statusCode, refused.json().error.message]).toEqual([
    503,
    'the model is not ready: the worker is being stopped',
  ])

  handles[0]!.client!.running = 0
  await expect.poll(() => management.fleet.find(id).hasEnded).toBe(true)
  expect(gateways).toHaveLength(1)
  const late = await ask()
  expect([late.statusCode, late.json().code]).toEqual([503, 'model_not_loaded'])
  expect(gateways).toHaveLength(1)
  await app.close()
})

test('the latencies of an ended worker are removed, whatever its model was called', async () => {
  const { app, management } = withGateways()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  const ask = (model: string) => postTo(app, '/v1/completions', { model, prompt: 'x' })
  await expect.poll(async () => (await ask('m')).statusCode).toBe(200)
  expect((await ask('m@tuned')).statusCode).toBe(200)
  const names = async () => {
    const { body } = await app.inject({ url: '/metrics' })
    return [...body.matchAll(/first_token_seconds_count\{model="(\S+)",worker="(\S+)"\}/g)]
  }
  expect((await names()).map(([, ...labels]) => labels)).toEqual([
    ['m', id],
    ['m@tuned', id],
  ])
  management.stop(id)
  await expect.poll(() => management.fleet.find(id).hasEnded).toBe(true)
  expect(await names()).toEqual([])
  await app.close()
})

test('calls and mixtures are known at every gateway', async () => {
  const { app, management, handles } = withGateways()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  await expect.poll(() => handles[0]!.client).not.toBeNull()
  const mix = { state_viewname: 'mix', state_filenames: ['state.pth', 'b.pth'] }
  expect((await postTo(app, '/mrss_loadstatemodel', mix)).statusCode).toBe(200)
  const at = `/api/workers/${id}/proxy`
  const { client } = handles[0]!
  for (const model of ['m mix', 'm@mix']) {
    const reply = await postTo(app, `${at}/v1/completions`, { model, prompt: 'x' })
    expect(reply.statusCode, reply.body).toBe(200)
    expect(client!.requests.at(-1)).toMatchObject({ mixture: [{ startState: 'mix 1' }, { startState: 'mix 2' }] })
  }

  client!.script = endless
  const open = postTo(app, `${at}/v1/chat/completions`, { contents: ['x'], request_id: 'mine' })
  const calls = async () => (await app.inject({ url: '/v1/server/status' })).json().active_requests.length
  await expect.poll(calls).toBe(1)
  const ended = await app.inject({ method: 'DELETE', url: '/v1/requests/mine' })
  expect(ended.statusCode).toBe(200)
  expect((await open).statusCode).toBe(409)
  await app.close()
})

test('a worker stopped before its restart stays stopped; simultaneous restarts are one', async () => {
  const { app, management, handles } = withGateways()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  await expect.poll(() => management.fleet.find(id).phase).toBe('ready')
  handles[0]!.client!.running = 1
  const first = await management.restart(id)
  expect(first.phase).toBe('draining')
  management.stop(id)
  handles[0]!.client!.running = 0
  await expect.poll(() => management.fleet.find(id).hasEnded).toBe(true)
  expect(handles).toHaveLength(1)
  await management.restart(id)
  await expect.poll(() => management.fleet.find(id).phase).toBe('ready')
  await Promise.all([management.restart(id), management.restart(id)])
  await expect.poll(() => handles.length).toBe(3)
  await expect.poll(() => management.fleet.find(id).phase).toBe('ready')
  expect(management.fleet.find(id).log.tail(10).join()).not.toContain('still running')
  await app.close()
})

test.each(['stop', 'forget', 'shut down'] as const)(
  'one that has ended and waits for its ways to close does not come back after: %s',
  async (what) => {
    const { app, management, gateways, handles } = withGateways()
    const { fleet } = management
    const { worker_id: id } = await management.start(DEFAULT_SPEC)
    await expect.poll(() => fleet.find(id).phase).toBe('ready')
    expect((await app.inject({ url: `/api/workers/${id}/proxy/readyz` })).statusCode).toBe(200)
    let isClosed = false
    const gateway = gateways[0]!
    const close = gateway.close.bind(gateway)
    gateway.close = (async () => {
      await delay(300)
      await close()
      isClosed = true
    }) as typeof gateway.close
    await management.restart(id)
    await expect.poll(() => fleet.find(id).hasEnded).toBe(true)
    expect(isClosed).toBe(false)
    if (what === 'stop') management.stop(id)
    else if (what === 'forget') await app.inject({ method: 'DELETE', url: `/api/workers/${id}` })
    else await fleet.stop()
    await expect.poll(() => isClosed).toBe(true)
    await delay(50)
    expect(handles).toHaveLength(1)
    await app.close()
  },
)

test('a worker that is about to restart stays stopped when the server shuts down', async () => {
  const { app, management, handles } = withGateways()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  await expect.poll(() => management.fleet.find(id).phase).toBe('ready')
  handles[0]!.client!.running = 1
  await management.restart(id)
  await management.fleet.stop()
  await delay(50)
  expect(handles).toHaveLength(1)
  await app.close()
})
