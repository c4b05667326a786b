/** States sent from one worker's memory to another's: complete, or else read from the storage, and only for members. */
import { mkdtempSync, renameSync } from 'node:fs'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { CALLER_HEADER } from '../../src/cluster/member-seal.ts'
import { movesOf } from '../../src/cluster/moves.ts'
import { STATES_PATH } from '../../src/cluster/state-socket.ts'
import { CallerSeal } from '../../src/gateway/access/caller-seal.ts'
import { buildApp } from '../../src/gateway/app.ts'
import { ClusterNode } from '../../src/gateway/cluster/node.ts'
import { SharedStore } from '../../src/state/shared/shared-store.ts'
import { snapshotParts } from '../../src/state/snapshot-file.ts'
import type { StatePut } from '../../src/state/store/store.ts'
import { ONE_LAYER } from '../helpers/direct-store.ts'
import { FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NAME = { namespace: 'n', id: 's' }
const KEY = 'a'.repeat(32)
const CLUSTER_KEY = 'what members know'
const RELEASE = { puts: [], sessions: [], deleteKeys: [], releases: [NAME] }

const seal = new CallerSeal(CLUSTER_KEY)
const MEMBER = { [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }) }

function putOf(seed: number, key = KEY): StatePut {
  const floats = [128, 4096].map((length) => new Float32Array(length).fill(seed))
  const text = { tokens: Int32Array.of(1, 2, 3), tail: Int32Array.of(4) }
  return { key, ...text, floats, namespace: NAME.namespace, isForeign: false }
}

function fileOf({ key, namespace, isForeign, ...content }: StatePut): Buffer {
  const owner = { namespace, isForeign, key }
  return Buffer.concat(snapshotParts(content, ONE_LAYER, owner))
}

async function listen(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  onTestFinished(() => {
    server.close()
    server.closeAllConnections()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

describe.skipIf(NO_POSTGRES !== null)('a state that moves', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  /** The server of a node, without its models. */
  async function startNode(): Promise<string> {
    const engine = new FakeEngineClient()
    const node = new ClusterNode({ seal, enginesOf: () => [engine] })
    const app = buildApp({
      ...{ models: fakeRegistry(engine), keys: ['sk-user'], host: '127.0.0.1', version: '1' },
      ...{ seal, mount: (own) => node.mount(own) },
    })
    await app.listen({ port: 0 })
    onTestFinished(async () => {
      node.close()
      app.server.closeAllConnections()
      await app.close()
    })
    return `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`
  }

  /**
   * A worker with a session whose state is stored and offered; another worker takes it. `url`: that of the first node.
   */
  async function letGo(url: string, fetchMs: number | undefined = 600_000) {
    const [database, folder] = [postgres.newDatabase(), mkdtempSync(join(tmpdir(), 'skein-blobs-'))]
    const open = async (node: string) => {
      const store = await SharedStore.open({
        ...{ database, blobs: `file://${folder}`, identity: ONE_LAYER, isToldFirst: false },
        worker: { node, url, model: 'm', slots: 1, info: {} },
        ...{ key: CLUSTER_KEY, maxInlineBytes: 1000, offerMs: 600_000, fetchMs },
      })
      onTestFinished(() => store.close().catch(() => {}))
      return store
    }
    const [one, two] = [await open('one'), await open('two')]
    const turn = { turn: 1, parent: 0, createdAt: 1, key: KEY, numTokens: 4, isForeign: false }
    const times = { createdAt: 1, updatedAt: 1, ttlMs: null }
    const bytes = 4 * (128 + 4096 + 4)
    const record = { version: 1, head: 1, nextTurn: 2, turns: [{ ...turn, bytes }], ...times }
    await one.claim(NAME, true)
    await one.commit({ puts: [putOf(1)], sessions: [{ ...NAME, record }], deleteKeys: [] })
    one.offer(putOf(1))
    await one.commit(RELEASE)
    const client = await Database.open(database)
    onTestFinished(() => client.close())
    const moves = async () => (await movesOf(client, 10)).latest
    return { one, two, folder, moves }
  }

  /** What the second worker receives. */
  async function taken({ two }: Awaited<ReturnType<typeof letGo>>) {
    expect((await two.claim(NAME, false)).session?.record.head).toBe(1)
    const { state, tokens, tail } = await two.load(KEY, NAME.namespace)
    return { floats: state, tokens, tail }
  }

  const { floats, tokens, tail } = putOf(1)
  const STATE = { floats, tokens, tail }

  test('it is sent from memory, without the storage, once, and the move is recorded', async () => {
    const cluster = await letGo(await startNode())
    renameSync(cluster.folder, `${cluster.folder}-away`)
    expect(await taken(cluster)).toEqual(STATE)
    await expect.poll(cluster.moves).toMatchObject([{ id: 's', isDirect: true }])
    const between = { fromWorker: cluster.one.owner, toWorker: cluster.two.owner }
    expect(await cluster.moves()).toMatchObject([between])
    await expect(cluster.two.load(KEY, NAME.namespace)).rejects.toThrow()
    renameSync(`${cluster.folder}-away`, cluster.folder)
    // No worker takes from itself, and a session that went back and forth is in the storage.
    await cluster.two.commit(RELEASE)
    expect(await taken(cluster)).toEqual(STATE)
    expect(await cluster.moves()).toHaveLength(1)
  })

  test('if its former owner is gone, it is read from the storage', async () => {
    const cluster = await letGo(await startNode())
    await cluster.one.close()
    expect(await taken(cluster)).toEqual(STATE)
    await expect.poll(cluster.moves).toMatchObject([{ isDirect: false }])
  })

  const whole = fileOf(putOf(1))
  const damaged = Buffer.from(whole)
  damaged[whole.length - 100]! ^= 1
  test.each<[string, RequestListener, number?]>([
    [
      'dies in the middle',
      (_, reply) => {
        reply.writeHead(200, { 'content-length': whole.length })
        reply.write(whole.subarray(0, whole.length / 2), () => reply.destroy())
      },
    ],
    ['says nothing until the other has given up', () => {}, 100],
    ['sends damage', (_, reply) => void reply.end(damaged)],
    ['sends another state', (_, reply) => void reply.end(fileOf(putOf(2, 'b'.repeat(32))))],
    ["sends another tenant's", (_, reply) => void reply.end(fileOf({ ...putOf(2), namespace: 'other' }))],
    ['sends without end', (_, reply) => void reply.end(Buffer.alloc(1_000_000))],
    ['refuses', (_, reply) => void reply.writeHead(404).end()],
  ])('if the former owner %s, it is read from the storage', async (_, listener, fetchMs) => {
    const cluster = await letGo(await listen(listener), fetchMs)
    expect(await taken(cluster)).toEqual(STATE)
    await expect.poll(cluster.moves).toMatchObject([{ isDirect: false }])
    // Another worker took its fence before anything was sent.
    const late = { puts: [putOf(3, 'c'.repeat(32))], deleteKeys: [] }
    const record = { ...(await cluster.two.find(NAME))!.record, version: 9 }
    expect(await cluster.one.commit({ ...late, sessions: [{ ...NAME, record }] })).toEqual([NAME])
    expect((await cluster.two.find(NAME))?.record.version).toBe(1)
  })

  test('it is available to members only, not to user keys, forwarded requests or another cluster', async () => {
    const url = await startNode()
    const { one } = await letGo(url)
    const at = `${url}${STATES_PATH}/${one.owner}/${KEY}`
    const principal = { tenant: 't', name: 'n', role: 'admin', limits: {}, expiresAt: null }
    const forUser = seal.seal({ principal: principal as never, mayTake: true })
    const other = new CallerSeal('another').seal({ principal: null, mayTake: false })
    const refused: [Record<string, string>, number][] = [
      [{}, 403],
      [{ authorization: 'Bearer sk-user' }, 403],
      [{ [CALLER_HEADER]: forUser }, 403],
      [{ [CALLER_HEADER]: other }, 401],
    ]
    for (const [headers, status] of refused) expect((await fetch(at, { headers })).status).toBe(status)
    const release = { method: 'POST', headers: { [CALLER_HEADER]: forUser } }
    expect((await fetch(`${url}/cluster/release`, release)).status).toBe(403)
    expect((await fetch(`${url}${STATES_PATH}/nobody/${KEY}`, { headers: MEMBER })).status).toBe(404)
    const given = await fetch(at, { headers: MEMBER })
    expect(Buffer.from(await given.arrayBuffer())).toEqual(whole)
    expect((await fetch(at, { headers: MEMBER })).status).toBe(404)
  })
})
