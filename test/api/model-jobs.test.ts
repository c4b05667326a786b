/** Models downloaded, quantised and deleted over HTTP: by admins, one at a time, with progress, from a local hub. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ollama } from 'ollama'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { addKey, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { buildApp } from '../../src/gateway/app.ts'
import type { PullRecord, WorkerSpec } from '../../src/gateway/contract.ts'
import { Fleet } from '../../src/gateway/fleet/fleet.ts'
import { DEFAULT_SPEC, launchOf } from '../../src/gateway/fleet/launch.ts'
import { ModelJobs } from '../../src/host/checkpoints/model-jobs.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { quantisedSourceOf } from '../../src/model/formats/safetensors/quantised.ts'
import { byteCodec, FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'
import { type FakeHub, startFakeHub } from '../helpers/fake-hub.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { FakeWorker, managementOf } from './hosted.ts'
import { urlOf } from './kit.ts'

const folder = temporaryFolder()
const place = join(folder, 'skein/models/tests--tiny')
const slow = join(folder, 'skein/models/tests--slow')
const source = writeRandomRwkv7(join(folder, 'source.pth'), { vocab: 260 })
const content = readFileSync(source)
/** Processes run the built code. */
const QUANTISER = join(process.cwd(), 'dist/host/checkpoints/quantise-process.js')
let hub: FakeHub

beforeAll(async () => {
  hub = await startFakeHub({ 'tests/tiny': { 'tiny.pth': { content } }, 'tests/slow': { 'slow.pth': { content } } })
  // With a vocabulary of its own it needs no other.
  for (const [at, name] of [
    [place, 'tiny'],
    [slow, 'slow'],
  ] as const) {
    mkdirSync(at, { recursive: true })
    writeFileSync(join(at, `${name}.vocab.txt`), '')
  }
})
afterAll(() => hub.close())

interface ServeOptions {
  readonly isOpen?: boolean
  readonly host?: string
  readonly offline?: string
  /** Files that a worker uses. */
  readonly used?: readonly string[]
  readonly keyRing?: KeyRing
}

function serve({ isOpen = true, host = '127.0.0.1', used = [], offline = '', ...keys }: ServeOptions = {}) {
  const environment = { HF_ENDPOINT: hub.url, XDG_CACHE_HOME: folder, HF_HUB_OFFLINE: offline }
  const jobs = new ModelJobs({ environment, quantiser: QUANTISER })
  const refuse = () => {
    throw new SkeinError('not_found', 'there is none', { param: 'model_path' })
  }
  const resolve = ({ model_path }: WorkerSpec) =>
    model_path === 'source.pth' ? launchOf(named('source'), { file: source }) : refuse()
  const fleet = new Fleet({
    launcher: (launch, { onChange }) => ({ handle: new FakeWorker(launch, onChange), tokenizer: byteCodec }),
  })
  for (const file of used) fleet.create(launchOf(named('used'), { file }))
  const management = managementOf(fleet, resolve, { jobs, host, isOpen: () => isOpen })
  const models = fakeRegistry(new FakeEngineClient())
  return buildApp({ models, keys: [], host: '127.0.0.1', version: '1', management, ...keys })
}

const named = (model_name: string) => ({ ...DEFAULT_SPEC, model_path: model_name, model_name })

type App = ReturnType<typeof serve>

const pull = (app: App, name: string) => app.inject({ method: 'POST', url: '/api/models/pulls', payload: { name } })
const quantise = (app: App, quant: string, model_path = 'source.pth') =>
  app.inject({ method: 'POST', url: '/api/models/quantise', payload: { model_path, quant } })
const remove = (app: App, name: string) =>
  app.inject({ method: 'DELETE', url: `/api/models/${encodeURIComponent(name)}` })
const list = async (app: App): Promise<PullRecord[]> => (await app.inject('/api/models/pulls')).json().pulls
const ended = (app: App) =>
  expect.poll(async () => (await list(app))[0]!.state, { timeout: 20_000 }).not.toBe('running')

test('a model is downloaded, with progress; a second download waits', async () => {
  const app = serve()
  const reply = await pull(app, 'tests/tiny:tiny.pth')
  expect(reply.json()).toMatchObject({ name: 'tests/tiny:tiny.pth', state: 'running' })
  const second = await pull(app, 'rwkv7-g1-0.4b')
  expect([second.statusCode, second.json().field]).toEqual([409, 'name'])
  await ended(app)
  const [record] = await list(app)
  const { length } = content
  expect(record).toMatchObject({ state: 'done', done_bytes: length, total_bytes: length })
  expect(existsSync(join(place, 'tiny.pth'))).toBe(true)
  await app.close()
})

test('the Ollama client downloads a model with progress', async () => {
  const app = serve()
  const client = new Ollama({ host: await urlOf(app) })
  const { length: total } = content
  const half = Math.floor(total / 2)
  hub.faults.set('/cdn/tests/slow/slow.pth', [{ kind: 'cut', bytes: half }])
  const events = []
  const model = 'tests/slow:slow.pth'
  for await (const event of await client.pull({ model, stream: true })) events.push(event)
  expect(events[0]).toEqual({ status: 'pulling manifest' })
  // Progress whenever it was polled; the last line has the total, however fast it was.
  const told = events.slice(1, -2).map(({ completed }) => completed)
  expect(told).toEqual(told.toSorted((a, b) => a - b))
  expect(events.at(-3)).toMatchObject({ total, completed: total })
  expect(events.at(-1)).toEqual({ status: 'success' })
  expect(readFileSync(join(slow, 'slow.pth'))).toEqual(content)
  expect(await client.pull({ model })).toEqual({ status: 'success' })
  await expect(client.pull({ model: 'tests/nothing' })).rejects.toThrow(/could not be fetched/)
  await app.close()
})

test('without the admin role nothing is downloaded through the Ollama route either', async () => {
  const path = join(folder, 'keys.json')
  const ask = async (role: 'operator' | 'admin') => {
    const key = { name: role, role, expiresAt: null, limits: NO_LIMITS } as const
    const { secret } = await changeKeys(path, (keys) => addKey(keys, key, 0))
    const app = serve({ keyRing: new KeyRing(path) })
    const payload = { model: 'tests/nothing' }
    const headers = { authorization: `Bearer ${secret}` }
    const { body } = await app.inject({ method: 'POST', url: '/api/pull', payload, headers })
    await app.close()
    return body
  }
  expect(await ask('operator')).toContain('a key of an admin may fetch it')
  expect(await ask('admin')).toContain('could not be fetched')
})

test('a failed download says why; an invalid name is refused', async () => {
  const app = serve()
  await pull(app, 'tests/nothing')
  await ended(app)
  expect((await list(app))[0]).toMatchObject({ state: 'failed', reason: expect.stringMatching(/\S/) })
  for (const name of ['../../etc/passwd', 'http://example.org/x', 'tests/tiny:../x']) {
    const reply = await pull(app, name)
    expect([reply.statusCode, reply.json().field]).toEqual([422, 'name'])
  }
  expect(await list(app)).toHaveLength(1)
  await app.close()
})

test('the hub is searched, and a repository lists what can be downloaded', async () => {
  const app = serve()
  const get = async (url: string) => {
    const reply = await app.inject(url)
    return [reply.statusCode, reply.json()] as const
  }
  expect(await get('/api/models/hub?search=TINY')).toEqual([
    200,
    { repositories: [{ name: 'tests/tiny', downloads: 1000, likes: 0, is_gated: false }] },
  ])
  expect(await get('/api/models/hub/files?repository=tests/tiny')).toEqual([
    200,
    { models: [{ name: 'tests/tiny:tiny.pth', file: 'tiny.pth', bytes: content.length }] },
  ])
  expect((await get('/api/models/hub?search=nothing%20of%20it'))[1]).toEqual({ repositories: [] })
  for (const [url, field] of [
    ['/api/models/hub?search=', 'search'],
    ['/api/models/hub/files?repository=../x', 'repository'],
    ['/api/models/hub/files', 'repository'],
  ] as const) {
    const [status, reply] = await get(url)
    expect([status, reply.field]).toEqual([422, field])
  }
  hub.faults.set('/api/models', [{ kind: 'body', body: '{"error":"busy"}' }])
  expect((await get('/api/models/hub?search=x'))[1].detail).toContain('no list')
  await app.close()
})

test('a server with HF_HUB_OFFLINE makes no requests to the hub', async () => {
  const app = serve({ offline: '1' })
  const asked = hub.requests.length
  const replies = [await app.inject('/api/models/hub?search=x'), await pull(app, 'tests/tiny')]
  for (const reply of replies)
    expect([reply.statusCode, reply.json().detail]).toEqual([403, expect.stringContaining('OFFLINE')])
  expect(hub.requests).toHaveLength(asked)
  await app.close()
})

test('nobody can fill the disk of a server that is open to everybody', async () => {
  const app = serve({ host: '0.0.0.0' })
  const name = 'tests/tiny:tiny.pth'
  const search = await app.inject('/api/models/hub?search=x')
  for (const reply of [search, await pull(app, name), await quantise(app, 'q4'), await remove(app, name)]) {
    const { statusCode } = reply
    expect([statusCode, reply.json().detail]).toEqual([403, expect.stringContaining('no key')])
  }
  expect(await list(app)).toEqual([])
  await app.close()
})

test('a model is quantised in a separate process, once, into a file that loads', async () => {
  const app = serve()
  const reply = await quantise(app, 'int8')
  expect(reply.json()).toMatchObject({ kind: 'quantise', name: 'source.pth int8', state: 'running' })
  expect((await quantise(app, 'q4')).statusCode).toBe(409)
  expect((await remove(app, 'tiny')).statusCode).toBe(409)
  await ended(app)
  const [record] = await list(app)
  expect(record).toMatchObject({ state: 'done', reason: null })
  expect(record!.done_bytes).toBe(record!.total_bytes)
  expect(record!.done_bytes).toBeGreaterThan(0)
  const written = join(folder, 'skein/models/local--quantised/source-int8.safetensors')
  const checkpoint = openCheckpoint(written)
  expect([...checkpoint.tensors.values()].some((entry) => quantisedSourceOf(entry)?.type === 'i8')).toBe(true)
  checkpoint.close()
  const again = await quantise(app, 'int8')
  expect([again.statusCode, again.json().field]).toEqual([409, 'quant'])
  const unknown = await quantise(app, 'int8', '../../etc/passwd')
  expect([unknown.statusCode, unknown.json().field]).toEqual([422, 'model_path'])
  expect((await quantise(app, 'fp3')).statusCode).toBe(422)
  await app.close()
})

test('only a downloaded model can be deleted, and none that a worker uses', async () => {
  const file = join(folder, 'skein/models/local--quantised/source-int8.safetensors')
  const busy = serve({ used: [file] })
  const refused = await remove(busy, 'source-int8')
  expect([refused.statusCode, refused.json().detail]).toEqual([409, expect.stringContaining('a worker uses')])
  await busy.close()
  const app = serve()
  for (const name of ['source', 'source.pth', '../../source.pth', source, '', 'nothing']) {
    expect((await remove(app, name)).statusCode, name).toBe(404)
  }
  const { length } = readFileSync(file)
  expect((await remove(app, 'source-int8')).json()).toEqual({ status: 'ok', freed_bytes: length })
  expect([existsSync(file), existsSync(source)]).toEqual([false, true])
  expect((await remove(app, 'source-int8')).statusCode).toBe(404)
  await app.close()
})
