/** The control plane as processes: every row of Albatross's document, with the demo model, and our additions. */
import { copyFileSync, mkdirSync, mkdtempSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import type { WorkerRecord } from '../../src/gateway/contract.ts'
import { DEMO, type RunningServer, serve } from '../helpers/cli.ts'
import { readEvents } from '../helpers/event-reader.ts'
import { postJson } from '../helpers/post-json.ts'

/** Other work may be running on the machine. */
const SOON = { timeout: 20_000 }

const MODEL = 'RWKV-7-World-0.4B-v2.8-20241022-ctx4096'

let server: RunningServer
const models = join(mkdtempSync(join(tmpdir(), 'skein-fleet-')), 'models')
beforeAll(async () => {
  mkdirSync(models)
  for (const name of [MODEL, 'other']) {
    copyFileSync(DEMO, join(models, `${name}.pth`))
    copyFileSync(DEMO.replace(/pth$/, 'vocab.txt'), join(models, `${name}.vocab.txt`))
  }
  // Started like Albatross's control plane, on a free port and without a key.
  const flags = ['--host', '0.0.0.0', '--no-auth', '--no-store', '--model-dir', models]
  server = await serve(flags)
})
afterAll(async () => {
  expect(await server.stop()).toBe(0)
})

interface Reply<T> {
  readonly status: number
  readonly body: T
}

async function call<T>(method: string, path: string, body?: object): Promise<Reply<T>> {
  const reply = await fetch(server.url + path, {
    method,
    ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
  })
  return { status: reply.status, body: (await reply.json()) as T }
}

const get = <T>(path: string) => call<T>('GET', path)
const start = (spec: object) => call<WorkerRecord>('POST', '/api/workers/start', spec)
const workerOf = async (id: string) => (await get<WorkerRecord>(`/api/workers/${id}`)).body

async function ready(spec: object): Promise<WorkerRecord> {
  const { status, body } = await start(spec)
  expect(status).toBe(200)
  await expect.poll(async () => (await workerOf(body.worker_id)).phase, SOON).toBe('ready')
  return workerOf(body.worker_id)
}

async function stop(id: string): Promise<void> {
  await call('POST', `/api/workers/${id}/stop`)
  await expect.poll(async () => (await workerOf(id)).status, SOON).toBe('exited')
}

describe('Albatross, row by row', () => {
  test('1: on a public address without a model there is only the control plane', async () => {
    expect((await get('/api/workers')).body).toEqual([])
    const { body } = await get<{ gpus: object[]; env: object; os: object }>('/api/system')
    expect(body).toMatchObject({
      python: { version: expect.any(String), executable: expect.any(String) },
      os: { platform: process.platform, machine: expect.any(String) },
      env: { CUDA_VISIBLE_DEVICES: process.env.CUDA_VISIBLE_DEVICES ?? null },
      gpus: expect.any(Array),
      devices: expect.arrayContaining(['cpu']),
    })
    const { body: list } = await get<{ models: { path: string }[] }>('/api/models')
    expect(list.models.map(({ path }) => path)).toEqual([`${MODEL}.pth`, 'other.pth', 'demo'])
  })

  test('3: a worker is started by a path without its extension, and the reply comes at once', async () => {
    const spec = { model_path: `models/${MODEL}`, max_batch_size: 64 }
    const { status, body } = await start({ ...spec, max_queue_size: 1000 })
    expect(status).toBe(200)
    expect(body).toMatchObject({
      worker_id: expect.stringMatching(/^wkr-[0-9a-f]{10}$/),
      pid: expect.any(Number),
      status: 'running',
      phase: 'loading',
      exited_at: null,
      exit_code: null,
      endpoint: `${server.url}/api/workers/${body.worker_id}/proxy`,
      spec: { ...spec, gpu_id: null, host: '127.0.0.1', port: null },
    })
    await expect.poll(async () => (await workerOf(body.worker_id)).phase, SOON).toBe('ready')
    expect((await workerOf(body.worker_id)).info).toMatchObject({ architecture: 'rwkv7', slots: 64 })
    await stop(body.worker_id)
  })

  test('3: gpu_id pins the device; without that GPU the worker fails and says why', async () => {
    const { body } = await start({ model_path: 'other', gpu_id: 977 })
    expect(body.spec.gpu_id).toBe(977)
    await expect.poll(async () => (await workerOf(body.worker_id)).phase, SOON).toBe('failed')
    const ended = await workerOf(body.worker_id)
    expect(ended.status).toBe('exited')
    expect(ended.last_log.join('\n')).toMatch(/cuda|GPU|driver/i)
    expect(ended.reason).toMatch(/cuda|GPU|driver/i)
    expect(ended.exit_code).toBe(1)
    const { models } = (await get<{ models: object[] }>('/readyz')).body
    expect(models).toContainEqual({
      id: 'other',
      state: 'failed',
      reason: 'the model could not be loaded or kept running (backend_unavailable)',
      workers: { all: 0, ready: 0, failed: 1 },
    })
    expect((await call('DELETE', `/api/workers/${body.worker_id}`)).status).toBe(200)
  })

  test.each([
    ['/v1/completions', { prompt: 'Once upon a time' }],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'Tell me a story.' }] }],
  ])(
    '4, 5: the proxy of %s gives the answers of the worker, event by event',
    { tags: 'night' },
    async (path, question) => {
      const { worker_id, endpoint } = await ready({ model_path: MODEL })
      const bias = { logit_bias: { 0: -100 } }
      const body = { ...question, ...bias, max_tokens: 40, ignore_eos: true, temperature: 0 }
      const whole = await call<object>('POST', `/api/workers/${worker_id}/proxy${path}`, body)
      expect(whole.status).toBe(200)
      const { choices } = (await call<{ choices: object[] }>('POST', path, body)).body
      expect(whole.body).toMatchObject({ choices })

      const long = { ...body, max_tokens: 200, stream: true }
      const reply = await postJson(endpoint + path, long)
      const times: number[] = []
      for await (const _event of readEvents(reply)) times.push(performance.now())
      // On a busy machine an event has several tokens.
      expect(times.length).toBeGreaterThan(5)
      // A proxy that buffers would deliver them all at one moment.
      const middle = times[Math.floor(times.length / 2)]! - times[0]!
      const all = times.at(-1)! - times[0]!
      expect(middle).toBeGreaterThan(0.1 * all)
      expect(all).toBeGreaterThan(10)

      expect((await get(`/api/workers/${worker_id}/proxy/v1/models`)).status).toBe(200)
      expect((await get(`/api/workers/${worker_id}/proxy/nowhere`)).status).toBe(404)
      await stop(worker_id)
      const late = await call('POST', `/api/workers/${worker_id}/proxy${path}`, body)
      expect(late.status).toBe(503)
    },
  )

  test('a client that leaves the proxy ends its answer', { tags: 'night' }, async () => {
    const { worker_id, endpoint } = await ready({ model_path: MODEL })
    const controller = new AbortController()
    const reply = await postJson(
      `${endpoint}/v1/completions`,
      { prompt: 'x', stream: true, max_tokens: 60_000, ignore_eos: true },
      {},
      controller.signal,
    )
    await reply.body!.getReader().read()
    const running = async () => {
      const text = await (await fetch(`${server.url}/metrics`)).text()
      return Number(new RegExp(`^skein_num_requests_running\\{.*${worker_id}.*\\} (\\d+)`, 'm').exec(text)?.[1])
    }
    expect(await running()).toBe(1)
    controller.abort()
    await expect.poll(running, SOON).toBe(0)
    await stop(worker_id)
  })

  test('6: a stopped worker stays listed, with its exit code and its log', async () => {
    const { worker_id } = await ready({ model_path: MODEL })
    const stopped = await call('POST', `/api/workers/${worker_id}/stop`)
    expect(stopped).toEqual({ status: 200, body: { status: 'ok' } })
    await expect.poll(async () => (await workerOf(worker_id)).status, SOON).toBe('exited')
    const { body } = await get<WorkerRecord[]>('/api/workers')
    expect(body.find((worker) => worker.worker_id === worker_id)).toMatchObject({
      status: 'exited',
      phase: 'stopped',
      exit_code: 0,
      exited_at: expect.any(Number),
      pid: null,
    })
    const logs = await get<{ worker_id: string; lines: string[] }>(`/api/workers/${worker_id}/logs?tail=200`)
    expect(logs.body.worker_id).toBe(worker_id)
    expect(logs.body.lines.at(-1)).toBe('skein: stopped (exit code 0)')
    const one = await get<{ lines: string[] }>(`/api/workers/${worker_id}/logs?tail=1`)
    expect(one.body.lines).toHaveLength(1)
  })

  test('7: two workers, two models, both found by name', async () => {
    const both = await Promise.all([ready({ model_path: MODEL }), ready({ model_path: 'other', aliases: ['second'] })])
    const [one, two] = both
    expect(one.endpoint).not.toBe(two.endpoint)
    const ask = async (model: string) =>
      (await call<{ model: string }>('POST', '/v1/completions', { model, prompt: 'a', max_tokens: 1 })).body.model
    expect(await ask(MODEL)).toBe(MODEL)
    expect(await ask('other')).toBe('other')
    expect(await ask('second')).toBe('other')
    const missing = await call('POST', '/v1/completions', { model: 'none', prompt: 'a' })
    expect(missing.status).toBe(404)
    await Promise.all(both.map(({ worker_id }) => stop(worker_id)))
  })
})

describe('beyond Albatross', () => {
  test.each([
    [{ max_batch_size: 0 }, 'max_batch_size'],
    [{ max_batch_size: 4097 }, 'max_batch_size'],
    [{ max_queue_size: 1_000_001 }, 'max_queue_size'],
    [{ prefill_chunk_size: 65_537 }, 'prefill_chunk_size'],
    [{ port: 65_536 }, 'port'],
    [{ gpu_id: -1 }, 'gpu_id'],
    [{ gpu_id: 0, device: 'cpu' }, 'device'],
    [{ gpu_id: 0, pp_devices: [0, 1] }, 'pp_devices'],
    [{ device: 'tpu' }, 'device'],
    [{ quant: 'int3' }, 'quant'],
    [{ wkv: 'fp4' }, 'wkv'],
    [{ threads: 'many' }, 'threads'],
    [{ model_name: 'a@b' }, 'model_name'],
    [{ states: [{ name: 'x@y', path: 'z' }] }, 'states[0].name'],
    [{ states: [{ name: 'x', path: 'none.pth' }] }, 'states'],
    [{ tokenizer_path: 'none.txt' }, 'tokenizer_path'],
    [{ tokenizer_path: 'other.pth' }, 'tokenizer_path'],
    [{ model_path: 'none' }, 'model_path'],
    [{ model_path: '../../etc/passwd' }, 'model_path'],
    [{ model_path: 'other.vocab.txt' }, 'model_path'],
    [{ model_path: 7 }, 'model_path'],
    [{ max_batchsize: 64 }, 'max_batchsize'],
  ])('%j is 422 and names the field', async (fields, field) => {
    const { status, body } = await call<object>('POST', '/api/workers/start', { model_path: MODEL, ...fields })
    expect(status).toBe(422)
    expect(body).toMatchObject({ field, detail: expect.stringContaining(field.split('[')[0]!) })
  })

  test('unknown workers are 404', async () => {
    const id = 'wkr-0000000000'
    for (const path of ['', '/logs', '/logs/stream', '/proxy/v1/models']) {
      const { status, body } = await get(`/api/workers/${id}${path}`)
      expect([status, body]).toEqual([404, expect.objectContaining({ detail: 'worker not found' })])
    }
    for (const path of ['/stop', '/restart']) expect((await call('POST', `/api/workers/${id}${path}`)).status).toBe(404)
    expect((await call('DELETE', `/api/workers/${id}`)).status).toBe(404)
  })

  test('workers of one name are replicas: of equal weights, used in turn', { tags: 'night' }, async () => {
    const spec = { model_path: MODEL, model_name: 'goose' }
    const both = await Promise.all([ready(spec), ready({ ...spec, threads: 1 })])
    const other = await call('POST', '/api/workers/start', { ...spec, model_path: 'other' })
    expect([other.status, other.body]).toEqual([409, expect.objectContaining({ field: 'model_name' })])
    const taken = await start({ model_path: 'other', aliases: ['goose'] })
    expect([taken.status, taken.body]).toEqual([409, expect.objectContaining({ field: 'aliases' })])
    const ask = () => call('POST', '/v1/completions', { model: 'goose', prompt: 'a', max_tokens: 64, ignore_eos: true })
    await Promise.all([1, 2, 3, 4].map(ask))
    const text = await (await fetch(`${server.url}/metrics`)).text()
    for (const { worker_id } of both) {
      const count = new RegExp(`skein_time_to_first_token_seconds_count\\{.*"${worker_id}"\\} (\\d+)`).exec(text)?.[1]
      expect(Number(count)).toBe(2)
    }

    // One of them dies; only its own streams notice.
    process.kill((await workerOf(both[0].worker_id)).pid!, 'SIGKILL')
    const answers = await Promise.all([1, 2, 3, 4].map(ask))
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200])
    await expect.poll(async () => (await workerOf(both[0].worker_id)).restarts, SOON).toBe(1)
    await expect.poll(async () => (await workerOf(both[0].worker_id)).phase, SOON).toBe('ready')
    await Promise.all(both.map(({ worker_id }) => stop(worker_id)))
  })

  test('a separate port leads to its worker alone', { tags: 'night' }, async () => {
    const port = await freePort()
    const { worker_id, endpoint } = await ready({ model_path: MODEL, model_name: 'own', port })
    expect(endpoint).toBe(`http://127.0.0.1:${port}`)
    const list = (await (await fetch(`${endpoint}/v1/models`)).json()) as { data: { id: string }[] }
    expect(list.data.map(({ id }) => id)).toEqual(['own'])
    expect((await fetch(`${endpoint}/api/workers`)).status).toBe(404)
    const clash = await start({ model_path: 'other', port })
    expect([clash.status, clash.body]).toEqual([409, expect.objectContaining({ field: 'port' })])

    await call('POST', `/api/workers/${worker_id}/restart`)
    await expect.poll(async () => (await workerOf(worker_id)).phase, SOON).toBe('draining')
    await expect.poll(async () => (await workerOf(worker_id)).phase, SOON).toBe('ready')
    expect((await fetch(`${endpoint}/v1/models`)).status).toBe(200)
    await stop(worker_id)
    await expect(fetch(`${endpoint}/v1/models`)).rejects.toThrow()
    // A worker that had ended is loading when the reply comes.
    const again = await call('POST', `/api/workers/${worker_id}/restart`)
    expect(again.body).toMatchObject({ status: 'running', phase: 'loading' })
    await expect.poll(async () => (await workerOf(worker_id)).phase, SOON).toBe('ready')
    await stop(worker_id)
    expect((await call('DELETE', `/api/workers/${worker_id}`)).status).toBe(200)
    expect((await get(`/api/workers/${worker_id}`)).status).toBe(404)
  })

  test('a running worker is not removed from the list', async () => {
    const { worker_id } = await ready({ model_path: MODEL })
    expect((await call('DELETE', `/api/workers/${worker_id}`)).status).toBe(409)
    await stop(worker_id)
  })

  test('events: hello, every change, a sample per second; a log as it grows', async () => {
    const controller = new AbortController()
    const { signal } = controller
    const reply = await fetch(`${server.url}/api/events`, { signal })
    expect(reply.headers.get('content-type')).toContain('text/event-stream')
    const seen: string[] = []
    const phases: string[] = []
    let numSamples = 0
    const { body: worker } = await start({ model_path: MODEL })
    const log = await fetch(`${server.url}/api/workers/${worker.worker_id}/logs/stream?tail=10`, { signal })
    const logged: string[] = []
    const reading = (async () => {
      for await (const { data } of readEvents(log)) logged.push((data as { line: string }).line)
    })()
    let isStopped = false
    for await (const { type, data } of readEvents(reply)) {
      seen.push(type)
      if (type === 'worker') phases.push((data as { worker: WorkerRecord }).worker.phase)
      if (type === 'sample') numSamples++
      if (phases.includes('ready') && !isStopped) {
        isStopped = true
        await call('POST', `/api/workers/${worker.worker_id}/stop`)
      }
      if (phases.includes('stopped') && numSamples >= 2) break
    }
    // Its last line arrives on another connection.
    await vi.waitFor(() => expect(logged).toContain('skein: stopped (exit code 0)'))
    controller.abort()
    await expect(reading).rejects.toThrow('aborted')
    expect(seen[0]).toBe('hello')
    expect([...new Set(phases)]).toEqual(['loading', 'ready', 'draining', 'stopped'])
  })

  test('only operators manage', async () => {
    const closed = await serve(['--api-key', 'sk-test', '--without-model', '--no-store'])
    try {
      for (const path of ['/api/system', '/api/models', '/api/workers', '/api/events'])
        expect((await fetch(closed.url + path)).status, path).toBe(401)
      const headers = { authorization: 'Bearer sk-test' }
      expect((await fetch(`${closed.url}/api/workers`, { headers })).status).toBe(200)
    } finally {
      await closed.stop()
    }
  })
})

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const address = probe.address()
      const port = typeof address === 'object' && address !== null ? address.port : 0
      probe.close(() => resolve(port))
    })
  })
}
