/** A front gateway with scripted nodes over real connections; sessions belong to nodes, as in the database. */
import type { FastifyInstance } from 'fastify'
import { afterEach, describe, expect, test } from 'vitest'
import { CALLER_HEADER } from '../../src/cluster/member-seal.ts'
import { SkeinError } from '../../src/errors.ts'
import { CallerSeal } from '../../src/gateway/access/caller-seal.ts'
import { buildApp, createShared } from '../../src/gateway/app.ts'
import { ClusterFront } from '../../src/gateway/cluster/front.ts'
import { ClusterNode } from '../../src/gateway/cluster/node.ts'
import { Nodes } from '../../src/gateway/cluster/nodes.ts'
import { clusterRegistry, type InformedMember } from '../../src/gateway/cluster/registry.ts'
import { Drain } from '../../src/gateway/http/drain.ts'
import type { KnownMixtures } from '../../src/gateway/models/mixtures.ts'
import { answer, endless, FAKE_INFO, FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'
import { postJson } from '../helpers/post-json.ts'
import { CHAT, eventsOf, HELLO } from './kit.ts'

const SECRET = 'a secret of the cluster'
const KEY = 'sk-of-a-user'
const HEADERS = { authorization: `Bearer ${KEY}` }
const IN_SESSION = { ...HELLO, session_id: 's1' }

interface TestNode {
  readonly id: string
  readonly app: FastifyInstance
  readonly engine: FakeEngineClient
  readonly drain: Drain
  readonly mixtures: KnownMixtures
  readonly member: InformedMember
}

const closing: (() => Promise<unknown>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

async function startNode(id: string, owners: Map<string, TestNode>): Promise<TestNode> {
  const engine = new FakeEngineClient(undefined, { ...FAKE_INFO, startStates: ['one'] })
  const shared = createShared()
  const drain = new Drain()
  const cluster = new ClusterNode({ seal: new CallerSeal(SECRET), enginesOf: () => [engine] })
  const app = buildApp({
    models: fakeRegistry(engine),
    keys: ['sk-of-the-node-alone'],
    host: '127.0.0.1',
    version: '1.2.3',
    ...{ drain, shared },
    seal: new CallerSeal(SECRET),
    modelsFor: (request, models) => cluster.modelsFor(request, models),
    mount: (own) => cluster.mount(own),
  })
  await app.listen({ port: 0 })
  closing.push(() => {
    cluster.close()
    app.server.closeAllConnections()
    return app.close()
  })
  const url = app.listeningOrigin
  const info = { ...FAKE_INFO, aliases: ['gander'] }
  const facts = { model: 'goose', slots: 16, inFlight: 0, info }
  const { mixtures } = shared
  const node = { id, app, engine, drain, mixtures, member: { id: `${id}-1`, node: id, url, ...facts } }
  const claim = (session: string) => {
    const owner = owners.get(session) ?? node
    owners.set(session, owner)
    if (owner.id !== id) throw new SkeinError('misdirected', 'it is elsewhere', { location: owner.member.url })
  }
  engine.script = function* (request) {
    if (request.session !== undefined) claim(request.session.id)
    yield* answer(request, `This is ${id}.`)
  }
  engine.answerCall = (method, params) => {
    const { id: session } = params as { id: string }
    if (method !== 'sessions.release') claim(session)
    else if (owners.get(session)?.id === id) owners.delete(session)
    return null
  }
  return node
}

async function startCluster(...ids: string[]) {
  const owners = new Map<string, TestNode>()
  const all = await Promise.all(ids.map((id) => startNode(id, owners)))
  const nodes = new Nodes()
  nodes.update(all.map(({ member }) => member))
  const drain = new Drain()
  const models = clusterRegistry(() => all.map(({ member }) => member))
  const seal = new CallerSeal(SECRET)
  const stored = new Map<string, string>()
  const front = new ClusterFront({
    ...{ nodes: () => nodes, models, seal, drain, keyHeaders: ['x-api-key'] },
    ownerOf: async (_model, _tenant, session) => stored.get(session) ?? null,
  })
  const app = buildApp({ ...{ models, keys: [KEY], host: '127.0.0.1', version: '1.2.3', drain, front, seal } })
  await app.listen({ port: 0 })
  closing.push(() => {
    front.close()
    app.server.closeAllConnections()
    return app.close()
  })
  const post = (body: object, path = CHAT, headers: Record<string, string> = HEADERS) =>
    postJson(`${app.listeningOrigin}${path}`, body, headers)
  return { all, nodes, front, owners, stored, app, url: app.listeningOrigin, post }
}

const nodeOf = (reply: Response) => reply.headers.get('x-skein-node')

describe('a gateway of a cluster', () => {
  test('forwards a request to a node and returns its reply, with its id', async () => {
    const { post, all } = await startCluster('a', 'b')
    const reply = await post(HELLO, CHAT, { ...HEADERS, 'x-request-id': 'mine' })
    expect(reply.status).toBe(200)
    const { choices } = (await reply.json()) as { choices: { message: { content: string } }[] }
    expect(choices[0]?.message.content).toBe(`This is ${nodeOf(reply)}.`)
    expect(reply.headers.get('x-request-id')).toBe('mine')
    const [request] = all.find(({ id }) => id === nodeOf(reply))!.engine.requests
    // The tenant of the user, not the key of the node.
    expect(request?.tenant).toMatch(/^key-/)
  })

  test.each(['goose mild', 'goose@mild'])('%s, a mixture, is asked of the nodes until one knows it', async (model) => {
    const { post, all } = await startCluster('a', 'b', 'c')
    const states = [{ startState: 'one', weight: 1 }]
    const mixture = { states, defaults: { temperature: null, topP: null } }
    all[1]!.mixtures.set('goose', new Map([['mild', mixture]]))
    for (let i = 0; i < 4; i++) {
      const reply = await post({ ...HELLO, model, messages: [{ role: 'user', content: `${i}` }] })
      expect({ status: reply.status, node: nodeOf(reply) }).toEqual({ status: 200, node: 'b' })
    }
    expect(all[1]!.engine.requests.map(({ mixture: states }) => states?.length)).toEqual([1, 1, 1, 1])
    const nowhere = await post({ ...HELLO, model: 'goose wild' })
    expect(nowhere.status).toBe(404)
    expect(await nowhere.json()).toMatchObject({ error: { param: 'model' } })
    expect((await post({ ...HELLO, model: 'gos' })).status).toBe(404)
  })

  test('without a node it says so, and nothing of what only a node can do', async () => {
    const { post } = await startCluster()
    const reply = await post(HELLO)
    expect(reply.status).toBe(503)
    const message = 'no node of the cluster has a model; GET /api/cluster lists the nodes'
    expect(await reply.json()).toMatchObject({ error: { code: 'model_not_loaded', message } })
  })

  test('streams as the node does, and sends equal prompts to one node', async () => {
    const { post } = await startCluster('a', 'b', 'c')
    const first = await post({ ...HELLO, stream: true })
    expect(first.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
    expect(eventsOf(await first.text()).at(-1)).toBe('[DONE]')
    for (let i = 0; i < 5; i++) {
      const reply = await post(HELLO)
      await reply.text()
      expect(nodeOf(reply)).toBe(nodeOf(first))
    }
  })

  test('a stream arrives while it runs, and a client that leaves ends it at the node', async () => {
    const { post, all } = await startCluster('a')
    const [{ engine }] = all as [TestNode]
    engine.script = (request, signal) => endless(request, signal)
    const reply = await post({ ...HELLO, stream: true })
    const reader = reply.body!.getReader()
    expect((await reader.read()).done).toBe(false)
    await reader.cancel()
    await expect.poll(() => engine.cancelled.length, { timeout: 10_000 }).toBe(1)
  })

  test('a wrong guess about a session is answered with its place, and followed', async () => {
    const { post, owners, all, front } = await startCluster('a', 'b', 'c')
    const first = await (await post(IN_SESSION)).json()
    const home = owners.get('s1')!
    const other = all.find(({ id }) => id !== home.id)!
    owners.set('s1', other)
    const reply = await post(IN_SESSION)
    expect(nodeOf(reply)).toBe(other.id)
    expect(front.counts.misdirected).toBe(1)
    expect(first).toMatchObject({ object: 'chat.completion' })
    // From now on it is known.
    await post(IN_SESSION)
    expect(front.counts.misdirected).toBe(1)
  })

  test('it trusts what the database says about a session', async () => {
    const { post, owners, all, front, stored } = await startCluster('a', 'b', 'c')
    for (const node of all) {
      const session = `of ${node.id}`
      owners.set(session, node)
      stored.set(session, node.id)
      expect(nodeOf(await post({ ...HELLO, session_id: session }))).toBe(node.id)
    }
    expect(front.counts.misdirected).toBe(0)
  })

  test('a draining node gets nothing new, its sessions move to another, and no request fails', async () => {
    const { post, owners, nodes } = await startCluster('a', 'b')
    await post(IN_SESSION)
    const home = owners.get('s1')!
    void home.drain.drain(60_000)
    const reply = await post(IN_SESSION)
    expect(reply.status).toBe(200)
    expect(nodeOf(reply)).not.toBe(home.id)
    expect(owners.get('s1')?.id).toBe(nodeOf(reply))
    expect(home.engine.calls.map(({ method }) => method)).toEqual(['sessions.release'])
    expect(nodes.isAvoided(home.id)).toBe(true)
  })

  test('an unreachable node is skipped', async () => {
    const { post, all } = await startCluster('a', 'b', 'c')
    const gone = nodeOf(await post(HELLO))
    const { app } = all.find(({ id }) => id === gone)!
    app.server.closeAllConnections()
    await app.close()
    const reply = await post(HELLO)
    expect(reply.status).toBe(200)
    expect(nodeOf(reply)).not.toBe(gone)
  })

  test('a full queue is tried elsewhere; if all are full the client gets the reply of a node', async () => {
    const { post, all } = await startCluster('a', 'b')
    const full = () => {
      throw new SkeinError('queue_full', 'the waiting line is full')
    }
    const first = all.find(({ id }) => id === 'a')!
    first.engine.script = full
    for (const content of ['one', 'two', 'three', 'four'])
      expect((await post({ messages: [{ role: 'user', content }] })).status).toBe(200)
    for (const { engine } of all) engine.script = full
    const reply = await post(HELLO)
    expect(reply.status).toBe(429)
    expect(reply.headers.get('retry-after')).not.toBeNull()
    expect(await reply.json()).toMatchObject({ error: { message: 'the waiting line is full' } })
  })

  test('a stream whose node dies ends with a single error event', async () => {
    const { post, all } = await startCluster('a')
    const [{ engine, app }] = all as [TestNode]
    engine.script = (request, signal) => endless(request, signal)
    const reply = await post({ ...HELLO, stream: true })
    const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader()
    let text = (await reader.read()).value ?? ''
    app.server.closeAllConnections()
    for (let part = await reader.read(); !part.done; part = await reader.read()) text += part.value
    expect(text).toMatch(/"message":"node a ended while it answered/)
  })

  test('a refusal of a node is forwarded once, in its own words', async () => {
    const { post, all } = await startCluster('a', 'b')
    const reply = await post({ ...HELLO, temperature: 'hot' })
    expect(reply.status).toBe(400)
    expect(await reply.text()).toContain('temperature')
    expect(all.flatMap(({ engine }) => engine.requests)).toEqual([])
  })

  test('the node decides about fields of a later release', async () => {
    const { post } = await startCluster('a')
    // The node of this release does not know it either, and says so itself.
    const reply = await post({ ...HELLO, session: { id: 's', of_a_later_release: 1 } })
    expect(nodeOf(reply)).toBe('a')
    expect(reply.status).toBe(400)
  })

  test('lists the models of all nodes by all their names, and no others', async () => {
    const { url, post } = await startCluster('a', 'b')
    const list = await (await fetch(`${url}/v1/models`, { headers: HEADERS })).json()
    expect(list).toMatchObject({ data: [{ id: 'goose', num_slots: 32 }, { id: 'gander' }] })
    // The gateway knows the other name; the scripts of these nodes do not.
    expect(nodeOf(await post({ ...HELLO, model: 'gander' }))).not.toBeNull()
    const unknown = await post({ ...HELLO, model: 'swan' })
    expect(unknown.status).toBe(404)
    expect(nodeOf(unknown)).toBeNull()
    expect((await fetch(`${url}/readyz`, { headers: HEADERS })).status).toBe(200)
  })

  test('sessions are found by their path', async () => {
    const { url, owners, all, stored } = await startCluster('a', 'b', 'c')
    owners.set('s2', all[2]!)
    stored.set('s2', all[2]!.id)
    const reply = await fetch(`${url}/v1/sessions/s2`, { headers: HEADERS, method: 'DELETE' })
    expect(nodeOf(reply)).toBe('c')
    expect(all[2]?.engine.calls.map(({ method }) => method)).toContain('sessions.delete')
  })

  test('requests that change one node are not sent to all', async () => {
    const { post } = await startCluster('a')
    const reply = await post({ model_filename: 'x', model_viewname: 'y' }, '/loadmodel')
    expect(reply.status).toBe(400)
    expect(await reply.text()).toContain('/api/cluster/nodes/NODE/proxy/loadmodel')
  })
})

describe('authentication', () => {
  test('requests without a key, with a key of a node, or with a user key sent to a node', async () => {
    const { post, all } = await startCluster('a')
    expect((await post(HELLO, CHAT, {})).status).toBe(401)
    const direct = await postJson(`${all[0]!.member.url}${CHAT}`, HELLO, HEADERS)
    expect(direct.status).toBe(401)
  })

  test('a key in the body, and in the header of another API', async () => {
    const { post } = await startCluster('a')
    const lightning = { contents: ['Hi'], password: KEY, stream: false }
    expect((await post(lightning, '/v1/chat/completions', {})).status).toBe(200)
    const anthropic = { ...HELLO, model: 'goose', max_tokens: 8 }
    expect((await post(anthropic, '/v1/messages', { 'x-api-key': KEY })).status).toBe(200)
  })

  test('members only with a recent seal made with their key', async () => {
    const { all } = await startCluster('a')
    const release = (headers: Record<string, string>) =>
      postJson(`${all[0]!.member.url}/cluster/release`, { model: 'goose', sessions: [] }, headers)
    const caller = { principal: null, mayTake: false }
    const seal = new CallerSeal(SECRET)
    expect((await release({ [CALLER_HEADER]: seal.seal(caller) })).status).toBe(200)
    expect((await release({ authorization: 'Bearer sk-of-the-node-alone' })).status).toBe(403)
    const foreign = new CallerSeal('another')
    expect((await release({ [CALLER_HEADER]: foreign.seal(caller) })).status).toBe(401)
    const old = new CallerSeal(SECRET, () => Date.now() - 600_000)
    expect((await release({ [CALLER_HEADER]: old.seal(caller) })).status).toBe(401)
    const [body, code] = seal.seal(caller).split('.')
    const forged = `${body}x.${code}`
    expect((await release({ [CALLER_HEADER]: forged })).status).toBe(401)
  })

  test('a server without a cluster ignores such headers', async () => {
    const app = buildApp({
      ...{ models: fakeRegistry(new FakeEngineClient()), keys: [KEY], host: '127.0.0.1' },
      version: '1.2.3',
    })
    const sealed = new CallerSeal(SECRET).seal({
      principal: {
        ...{ tenant: 't', name: 'n', role: 'admin', expiresAt: null },
        limits: {
          ...{ requestsPerMinute: null, tokensPerMinute: null, rows: null },
          ...{ storedBytes: null, share: null },
        },
      },
      mayTake: false,
    })
    const reply = await app.inject({ url: '/v1/models', headers: { [CALLER_HEADER]: sealed } })
    expect(reply.statusCode).toBe(401)
  })
})
