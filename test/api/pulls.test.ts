/** Models fetched over HTTP: by admins, one at a time, with progress, from a hub on this machine. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { buildApp } from '../../src/gateway/app.ts'
import type { PullRecord } from '../../src/gateway/contract.ts'
import { Fleet } from '../../src/gateway/fleet/fleet.ts'
import { Pulls } from '../../src/host/pulls.ts'
import { FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'
import { type FakeHub, startFakeHub } from '../helpers/fake-hub.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { managementOf } from './hosted.ts'

const folder = temporaryFolder()
const place = join(folder, 'skein/models/tests--tiny')
const content = readFileSync(writeRandomRwkv7(join(folder, 'source.pth'), { vocab: 260 }))
let hub: FakeHub

beforeAll(async () => {
  hub = await startFakeHub({ 'tests/tiny': { 'tiny.pth': { content } } })
  // With a vocabulary of its own it needs no other.
  mkdirSync(place, { recursive: true })
  writeFileSync(join(place, 'tiny.vocab.txt'), '')
})
afterAll(() => hub.close())

function serve(options: { readonly isOpen?: boolean; readonly host?: string } = {}) {
  const { isOpen = true, host = '127.0.0.1' } = options
  const pulls = new Pulls({ HF_ENDPOINT: hub.url, XDG_CACHE_HOME: folder })
  const refuse = () => {
    throw new SkeinError('not_found', 'there is none', { param: 'model_path' })
  }
  const fleet = new Fleet({ launcher: refuse })
  const management = managementOf(fleet, refuse, { pulls, host, isOpen: () => isOpen })
  const models = fakeRegistry(new FakeEngineClient())
  return buildApp({ models, keys: [], host: '127.0.0.1', version: '1', management })
}

type App = ReturnType<typeof serve>

const pull = (app: App, name: string) =>
  app.inject({ method: 'POST', url: '/api/models/pulls', payload: { name } })
const list = async (app: App): Promise<PullRecord[]> =>
  (await app.inject('/api/models/pulls')).json().pulls
const ended = (app: App) =>
  expect.poll(async () => (await list(app))[0]!.state, { timeout: 20_000 }).not.toBe('running')

test('a model is fetched, and says how far it is; another has to wait', async () => {
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

test('what cannot be fetched says why; what is no name is refused', async () => {
  const app = serve()
  await pull(app, 'tests/nothing')
  await ended(app)
  expect((await list(app))[0]).toMatchObject({
    state: 'failed',
    reason: expect.stringMatching(/\S/),
  })
  for (const name of ['../../etc/passwd', 'http://example.org/x', 'tests/tiny:../x']) {
    const reply = await pull(app, name)
    expect([reply.statusCode, reply.json().field]).toEqual([422, 'name'])
  }
  expect(await list(app)).toHaveLength(1)
  await app.close()
})

test('nobody can fill the disk of a server that everybody can reach', async () => {
  const app = serve({ host: '0.0.0.0' })
  const reply = await pull(app, 'tests/tiny:tiny.pth')
  expect([reply.statusCode, reply.json().detail]).toEqual([403, expect.stringContaining('no key')])
  expect(await list(app)).toEqual([])
  await app.close()
})
