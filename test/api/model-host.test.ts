/**
 * Models that are loaded and removed while a gateway runs, with scripted workers: loading, replacing, draining and
 * refusing.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import type { WorkerSpec } from '../../src/gateway/contract.ts'
import { Metrics } from '../../src/gateway/figures/metrics.ts'
import { DEFAULT_SPEC } from '../../src/gateway/fleet/launch.ts'
import { endless } from '../helpers/fake-engine.ts'
import { hosted, managementOf, SEED } from './hosted.ts'
import { postTo, serve } from './kit.ts'

const UNSPECIAL = { quant: null, startStates: [], vocab: null } as const
const inFolder = (folder: string) => (spec: WorkerSpec) => ({
  ...UNSPECIAL,
  id: 'm',
  file: join(folder, spec.model_path),
  spec,
})
const byName = (spec: WorkerSpec) => ({ ...UNSPECIAL, id: spec.model_name!, file: spec.model_path, spec })

describe('models are loaded and removed', () => {
  test('an empty server says so; a loaded model is served by its name', async () => {
    const { app, names, say, handles } = hosted()
    expect(await names()).toEqual([])
    expect((await app.inject({ url: '/readyz' })).statusCode).toBe(503)
    expect((await say()).error.code).toBe('model_not_loaded')
    const reply = await postTo(app, '/loadmodel', SEED)
    expect(reply.json()).toEqual({ status: 'success' })
    expect(await names()).toEqual([SEED.model_viewname])
    expect((await say(SEED.model_viewname)).choices[0].text).toBe('0.pth')
    expect((await say('duck')).error.code).toBe('model_not_found')
    // The same request again does nothing.
    expect((await postTo(app, '/loadmodel', SEED)).statusCode).toBe(200)
    expect(handles).toHaveLength(1)
  })

  test('a model is replaced when the new one is ready, and drained', async () => {
    const { app, say, handles, next, names } = hosted()
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
    next.isHeld = true
    const loading = postTo(app, '/loadmodel', { model_filename: 'b.pth', model_viewname: 'm' })
    await expect.poll(() => handles.length).toBe(2)
    expect((await say('m')).choices[0].text).toBe('a.pth')
    const old = handles[0]!.client!
    old.running = 1
    handles[1]!.ready.resolve()
    expect((await loading).statusCode).toBe(200)
    expect((await say('m')).choices[0].text).toBe('b.pth')
    expect(handles[0]!.stopped).toBe(false)
    old.running = 0
    await expect.poll(() => handles[0]!.stopped).toBe(true)
    expect(await names()).toEqual(['m'])
  })

  test('a failed load changes nothing', async () => {
    const { app, say, handles, next } = hosted()
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
    next.fail = 'unsupported_weights'
    const reply = await postTo(app, '/loadmodel', { model_filename: 'b.pth', model_viewname: 'm' })
    expect(reply.statusCode).toBe(500)
    expect(reply.json()).toEqual({ detail: 'wrong size' })
    expect((await say('m')).choices[0].text).toBe('a.pth')
    expect(handles[1]!.stopped).toBe(true)
    expect(handles[0]!.stopped).toBe(false)
  })

  test('a worker whose model cannot be loaded is listed as failed', async () => {
    const { app, fleet, handles, next, names } = hosted()
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
    next.isHeld = true
    const loading = postTo(app, '/loadmodel', { model_filename: 'b.pth', model_viewname: 'm' })
    await expect.poll(() => handles.length).toBe(2)
    handles[1]!.giveUp()
    handles[1]!.ready.reject(new SkeinError('corrupt_weights', 'truncated'))
    expect((await loading).statusCode).toBe(500)
    expect(fleet.workers.map(({ phase }) => phase)).toEqual(['ready', 'failed'])
    expect(await names()).toEqual(['m'])
    expect((await app.inject({ url: '/readyz' })).json().status).toBe('ok')
  })

  test('if memory has no room for both, the old one ends first, and returns if the new one fails', async () => {
    const { app, say, handles, next } = hosted()
    const load = (model_strategy: string) => postTo(app, '/loadmodel', { ...SEED, model_strategy })
    await load('')
    const old = handles[0]!.client!
    old.running = 1
    Object.assign(next, { fail: 'out_of_memory', numFails: 1 })
    const loading = load('quant')
    await expect.poll(() => handles.length).toBe(3)
    expect((await say()).error.code).toBe('model_not_loaded')
    expect(handles[0]!.stopped).toBe(false)
    old.running = 0
    expect((await loading).statusCode).toBe(200)
    expect(handles[0]!.stopped).toBe(true)
    expect((await say()).choices[0].text).toBe('0.pth')

    // Neither beside the old one nor in its place.
    next.numFails = 2
    const failing = load('fp32')
    expect((await failing).statusCode).toBe(507)
    expect(handles.map(({ launch }) => launch.quant)).toEqual([null, 'nf4', 'nf4', 'f32', 'f32', 'nf4'])
    expect((await say()).choices[0].text).toBe('0.pth')
  })

  test('a worker that failed permanently is not replaced together with the new one', async () => {
    const { app, fleet, host, handles, next } = hosted()
    const load = (model_strategy: string) => postTo(app, '/loadmodel', { ...SEED, model_strategy })
    await load('')
    next.isHeld = true
    const failing = load('quant')
    for (const i of [1, 2]) {
      await expect.poll(() => handles.length).toBe(i + 1)
      if (i === 2) next.isHeld = false
      handles[i]!.giveUp()
      handles[i]!.ready.reject(new SkeinError('out_of_memory', 'too big'))
    }
    expect((await failing).statusCode).toBe(507)
    await expect.poll(() => handles[3]?.state).toBe('ready')
    const phases = () => fleet.workers.map(({ phase }) => phase)
    expect(phases()).toEqual(['stopped', 'failed', 'failed', 'ready'])

    expect((await load('')).statusCode).toBe(200)
    expect(handles).toHaveLength(4)
    expect((await load('fp32')).statusCode).toBe(200)
    expect(handles).toHaveLength(5)
    await expect.poll(phases).toEqual(['stopped', 'failed', 'failed', 'stopped', 'ready'])
    expect(host.registry.list().map(({ workers }) => workers)).toEqual([{ all: 1, ready: 1, failed: 0 }])
  })

  test.each([1, 2])('a replica that never started is not a model to replace (%i)', async (n) => {
    const { app, fleet, folder, handles, next } = hosted()
    const file = join(folder, 'RWKV-x060.pth')
    const id = SEED.model_viewname
    const launch = { id, file, quant: null, startStates: [], vocab: null }
    const management = managementOf(fleet, (spec) => ({ ...launch, spec }))
    const load = (model_strategy: string) => postTo(app, '/loadmodel', { ...SEED, model_strategy })
    if (n === 2) await load('')
    next.isHeld = true
    await management.start(DEFAULT_SPEC)
    next.isHeld = false
    handles.at(-1)!.giveUp()
    handles.at(-1)!.ready.reject(new SkeinError('backend_unavailable', 'no such device'))
    await expect.poll(() => fleet.workers.at(-1)!.phase).toBe('failed')
    expect((await load('')).statusCode).toBe(200)
    expect(handles).toHaveLength(2)
    expect((await load('quant')).statusCode).toBe(200)
    expect(handles).toHaveLength(3)
  })

  test('one model or all are removed', async () => {
    const { app, names, handles } = hosted()
    await postTo(app, '/loadmodel', { model_filename: 'a', model_viewname: 'one' })
    await postTo(app, '/loadmodel', { model_filename: 'b', model_viewname: 'two' })
    expect(await names()).toEqual(['one', 'two'])
    expect((await postTo(app, '/removemodel', { model_viewname: 'x' })).statusCode).toBe(404)
    await postTo(app, '/removemodel', { model_viewname: 'one' })
    expect(await names()).toEqual(['two'])
    expect((await postTo(app, '/removemodel', {})).json()).toEqual({ status: 'success' })
    expect(await names()).toEqual([])
    await expect.poll(() => handles.every(({ stopped }) => stopped)).toBe(true)
  })

  test.each([
    ['', null],
    ['quant', 'nf4'],
    ['fp16', 'f16'],
  ])('strategy "%s"', async (model_strategy, quant) => {
    const { app, handles } = hosted()
    await postTo(app, '/loadmodel', { ...SEED, model_strategy })
    expect(handles[0]!.launch.quant).toBe(quant)
  })

  test('a file that was rewritten is loaded again, and so is an adapter', async () => {
    const { app, folder, handles } = hosted()
    const load = () => postTo(app, '/loadmodel', { ...SEED, adapter_filename: 'a.pth' })
    await load()
    for (const name of [SEED.model_filename, 'a.pth']) {
      const loaded = handles.length
      writeFileSync(join(folder, name), 'trained further')
      await load()
      await load()
      expect(handles).toHaveLength(loaded + 1)
    }
  })

  test('an adapter makes another model; the same adapter again does not', async () => {
    const { app, folder, fleet, handles } = hosted()
    const load = (fields: object) => postTo(app, '/loadmodel', { ...SEED, ...fields })
    await load({ adapter_filename: '', adapter_mode: '', adapter_scaling: 2, template: 'world' })
    expect(handles[0]!.launch.adapters).toBeUndefined()
    const adapter = { adapter_filename: 'a.pth', adapter_mode: 'lora', adapter_scaling: '0.5' }
    await load(adapter)
    await load(adapter)
    expect(handles).toHaveLength(2)
    const adapters = [{ path: join(folder, 'a.pth'), scale: 0.5 }]
    expect(handles[1]!.launch.adapters).toEqual(adapters)
    // The same goes for a replica.
    const { file } = handles[1]!.launch
    const management = managementOf(fleet, (spec) => {
      return { id: SEED.model_viewname, file, quant: null, startStates: [], vocab: null, spec }
    })
    await management.start(DEFAULT_SPEC)
    expect(handles[2]!.launch.adapters).toEqual(adapters)
    await management.close()
    const none = await load({ adapter_filename: 'none.pth' })
    expect([none.statusCode, none.json().detail]).toEqual([404, expect.stringContaining('adapter_filename')])
  })

  test('what remains when the host closes', async () => {
    const { app, host, handles, next } = hosted()
    await postTo(app, '/loadmodel', { model_filename: 'a', model_viewname: 'm' })
    next.isHeld = true
    const loading = postTo(app, '/loadmodel', { model_filename: 'b', model_viewname: 'm' })
    await expect.poll(() => handles.length).toBe(2)
    await host.stop()
    expect((await loading).statusCode).toBe(503)
    expect(handles.every(({ stopped }) => stopped)).toBe(true)
  })
})

test('metrics report a worker that failed, but not one that never served or was ended', async () => {
  const { app, fleet, host, handles, next } = hosted()
  const { registry } = new Metrics(fleet.registry, fleet)
  const ready = async () => [...(await registry.metrics()).matchAll(/^skein_worker_ready.* (\d)$/gm)].map(([, n]) => n)
  await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
  expect(await ready()).toEqual(['1'])
  handles[0]!.giveUp()
  expect(await ready()).toEqual(['0'])
  expect(await registry.metrics()).toMatch(/^skein_worker_restarts_total.* 0$/m)
  next.fail = 'unsupported_weights'
  await postTo(app, '/loadmodel', { model_filename: 'b.pth', model_viewname: 'n' })
  expect(await ready()).toEqual(['0'])
  await host.stop()
  expect(await ready()).toEqual([])
})

test('a failed worker leaves its name to another file, precision or states', async () => {
  const { fleet, handles, next, say } = hosted()
  const management = managementOf(fleet, (spec) => {
    const { model_path: file, quant, states: startStates } = spec
    return { id: 'm', file, quant, startStates, vocab: null, spec }
  })
  next.isHeld = true
  const states = [{ name: 'tuned', path: 'state.pth' }]
  const first = await management.start({ ...DEFAULT_SPEC, model_path: 'a.pth', states })
  await expect(management.start({ ...DEFAULT_SPEC, model_path: 'b.pth' })).rejects.toThrow('served')
  handles[0]!.giveUp()
  next.isHeld = false
  await management.start({ ...DEFAULT_SPEC, model_path: 'b.pth', quant: 'int8' })
  expect(handles.at(-1)!.launch).toMatchObject({ file: 'b.pth', startStates: [] })
  await expect.poll(async () => (await say('m')).choices?.[0].text).toBe('b.pth')
  // Now the name belongs to the other model.
  await expect(management.restart(first.worker_id)).rejects.toThrow('served from another file')
  await management.close()
})

test('a model whose only worker is about to restart is not ready, rather than unknown', async () => {
  const { app, folder, fleet, handles, say } = hosted()
  await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
  const management = managementOf(fleet, inFolder(folder))
  const [worker] = fleet.workers
  const body = { prompt: 'x', max_tokens: 1 }
  const answer = async (model?: string) => {
    const { statusCode, body: text } = await postTo(app, '/v1/completions', { ...body, model })
    return [statusCode, JSON.parse(text).error?.message]
  }
  const notReady = [503, 'the model is not ready: the worker is being started again']
  handles[0]!.client!.running = 1
  await management.restart(worker!.id)
  expect(await answer('m')).toEqual(notReady)
  expect(await answer()).toEqual(notReady)
  const ready = await app.inject({ url: '/readyz' })
  expect([ready.statusCode, ready.json().models?.[0]?.state]).toEqual([503, 'restarting'])
  handles[0]!.client!.running = 0
  await expect.poll(async () => (await say('m')).choices?.[0].text).toBe('a.pth')

  // A worker that finally does not return is unknown again.
  handles[1]!.client!.running = 1
  await management.restart(worker!.id)
  expect(await answer('m')).toEqual(notReady)
  management.stop(worker!.id)
  expect((await answer('m'))[0]).toBe(404)
  handles[1]!.client!.running = 0
  await management.close()
})

test('a removed model stays removed, whatever was about to start again', async () => {
  const { app, folder, fleet, handles, names } = hosted()
  const management = managementOf(fleet, inFolder(folder))
  const spec = { ...DEFAULT_SPEC, model_path: 'a.pth' }
  const remove = async (model_viewname?: string) => (await postTo(app, '/removemodel', { model_viewname })).statusCode
  // First the only model, then, with another beside it, all models.
  for (const numWorkers of [1, 2]) {
    const at = handles.length
    for (let i = 0; i < numWorkers; i++) await management.start(spec)
    await expect.poll(() => handles.slice(at).every(({ client }) => client)).toBe(true)
    const worker = fleet.workers[at]!
    handles[at]!.client!.running = 1
    await management.restart(worker.id)
    expect(await names()).toEqual(['m'])
    expect(await remove(numWorkers === 1 ? 'm' : undefined)).toBe(200)
    expect(await names()).toEqual([])
    handles[at]!.client!.running = 0
    await expect.poll(() => worker.hasEnded).toBe(true)
    await new Promise(setImmediate)
    expect([fleet.names, handles.length]).toEqual([[], at + numWorkers])
  }
  await management.close()
})

test('a start state for a restarting model is given to the new worker', async () => {
  const { app, folder, fleet, host, handles } = hosted()
  await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
  const management = managementOf(fleet, inFolder(folder))
  const add = () => host.addStartStates({ model: 'm', states: [{ name: 's', file: 'state.pth' }], param: 'file' })
  handles[0]!.client!.running = 1
  await management.restart(fleet.workers[0]!.id)
  const told = add()
  handles[0]!.client!.running = 0
  await told
  expect([...handles[1]!.client!.states.keys()]).toEqual(['s'])
  // A worker that will not return is not waited for either.
  handles[1]!.client!.running = 1
  await management.restart(fleet.workers[0]!.id)
  const untold = expect(add()).rejects.toThrow('not ready')
  await new Promise(setImmediate)
  management.stop(fleet.workers[0]!.id)
  await untold
  await management.close()
})

test('a worker restarts once, although it was requested twice, and stopped in between', async () => {
  const { fleet, handles, next } = hosted()
  const management = managementOf(fleet, (spec) => {
    return { id: 'm', file: 'a.pth', quant: null, startStates: [], vocab: null, spec }
  })
  const { worker_id: id } = await management.start({ ...DEFAULT_SPEC, model_path: 'a.pth' })
  await expect.poll(() => handles[0]?.client).toBeTruthy()
  handles[0]!.client!.running = 1
  await management.restart(id)
  management.stop(id)
  expect(fleet.names).toEqual([])
  await Promise.all([management.restart(id), management.restart(id)])
  expect(fleet.names).toEqual(['m'])
  next.isHeld = true
  handles[0]!.client!.running = 0
  await expect.poll(() => handles.length).toBe(2)
  await new Promise(setImmediate)
  expect(handles).toHaveLength(2)
  expect(fleet.serving('m')).toHaveLength(1)
  await management.close()
})

test('an alias that another model takes during a restart belongs to that model', async () => {
  const { fleet, handles } = hosted()
  const management = managementOf(fleet, byName)
  const spec = { ...DEFAULT_SPEC, aliases: ['q'] }
  const one = await management.start({ ...spec, model_name: 'one' })
  await expect.poll(() => handles[0]?.client).toBeTruthy()
  handles[0]!.client!.running = 1
  await management.restart(one.worker_id)
  await management.start({ ...spec, model_name: 'two' })
  await expect.poll(() => handles[1]?.client).toBeTruthy()
  expect(fleet.registry.get('q').id).toBe('two')
  // It could not be started.
  expect(fleet.names).toEqual(['two'])
  handles[0]!.client!.running = 0
  await expect.poll(() => fleet.find(one.worker_id).log.tail(1).join()).toContain('q means')
  await management.close()
})

test('a name has one model, whatever restarts or joins while another is loaded', async () => {
  const { app, folder, fleet, handles, next } = hosted()
  const load = (file: string) => postTo(app, '/loadmodel', { model_filename: file, model_viewname: 'm' })
  const management = managementOf(fleet, inFolder(folder))
  const serving = () => fleet.serving('m').map(({ launch }) => launch.file.slice(-5))
  await load('a.pth')
  const [first] = fleet.workers

  // A restarting worker does not block its name, and finds it taken when it returns.
  handles[0]!.client!.running = 1
  await management.restart(first!.id)
  await load('b.pth')
  handles[0]!.client!.running = 0
  await expect.poll(() => first!.log.tail(1).join()).toContain('served from another file')
  expect(serving()).toEqual(['b.pth'])

  // A replica joins a model that is about to be replaced.
  next.isHeld = true
  const loading = load('a.pth')
  await expect.poll(() => handles.length).toBe(3)
  next.isHeld = false
  await management.start({ ...DEFAULT_SPEC, model_path: 'b.pth' })
  await expect.poll(serving).toEqual(['b.pth', 'b.pth'])
  handles[2]!.ready.resolve()
  expect((await loading).statusCode).toBe(200)
  expect(serving()).toEqual(['a.pth'])
  await management.close()
})

test('a restarted worker has its names, unless another model has them', async () => {
  const { app, fleet, handles, next, names } = hosted()
  const management = managementOf(fleet, byName)
  // It never got its name.
  next.fail = 'corrupt_weights'
  await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'm' })
  expect(await names()).toEqual([])
  next.fail = null
  await management.restart(fleet.workers[0]!.id)
  await expect.poll(names).toEqual(['m'])
  expect(handles).toHaveLength(2)

  const spec = { ...DEFAULT_SPEC, aliases: ['q'] }
  const one = await management.start({ ...spec, model_name: 'one' })
  management.stop(one.worker_id)
  await expect.poll(() => fleet.find(one.worker_id).hasEnded).toBe(true)
  await management.start({ ...spec, model_name: 'two' })
  await expect(management.restart(one.worker_id)).rejects.toThrow('q means the model two')
  await management.close()
})

test.each([
  [{ ...SEED, model_strategy: 'nf3' }, 400, 'model_strategy'],
  [{ ...SEED, model_filename: 'none.pth' }, 404, 'model_filename'],
  [{ ...SEED, model_viewname: 'a@b' }, 400, 'model_viewname'],
  [{ model_viewname: 'x' }, 400, 'model_filename'],
  [{ ...SEED, adapter_filename: 'a.pth', adapter_mode: 'pissa' }, 400, 'adapter_mode'],
  [{ ...SEED, adapter_filename: 'a.pth', adapter_scaling: 'much' }, 400, 'adapter_scaling'],
  [{ ...SEED, template: 'qwen' }, 400, 'template'],
  [{ ...SEED, endtoken: '\\n' }, 400, 'endtoken'],
  [{ ...SEED, default_temperature: '0.5' }, 400, 'default_temperature'],
  [{ ...SEED, default_top_p: 1 }, 400, 'default_top_p'],
  [{ ...SEED, rope_theta: 10000 }, 400, 'rope_theta'],
  [{ ...SEED, rms_norm_eps: 1e-6 }, 400, 'rms_norm_eps'],
])('%o is refused with %i', async (body, status, field) => {
  const { app, handles } = hosted()
  const reply = await postTo(app, '/loadmodel', body)
  expect(reply.statusCode).toBe(status)
  expect(reply.json().detail).toContain(field)
  expect(handles).toEqual([])
})

test('where models are fixed, they cannot be changed', async () => {
  const { app } = serve(endless)
  const reply = await postTo(app, '/loadmodel', SEED)
  expect(reply.statusCode).toBe(403)
  expect(reply.json()).toEqual({ detail: 'the models of this server are fixed' })
  expect((await app.inject({ url: '/models' })).json()).toEqual([{ object: 'models', id: 'goose' }])
})
