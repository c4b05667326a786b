/** Rows of batches sent to nodes with scripted engines: which replies are answers, and which are retried. */
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { CALLER_HEADER } from '../../src/cluster/member-seal.ts'
import { CallerSeal } from '../../src/gateway/access/caller-seal.ts'
import { ClusterRows } from '../../src/gateway/cluster/batch-rows.ts'
import { nodesOf } from '../../src/gateway/cluster/nodes.ts'
import { clusterRegistry, type InformedMember } from '../../src/gateway/cluster/registry.ts'
import { FAKE_INFO } from '../helpers/fake-engine.ts'

const seal = new CallerSeal('a secret of the cluster')
const closing: (() => void)[] = []
afterEach(() => {
  for (const close of closing.splice(0)) close()
})

type Reply = (response: ServerResponse, body: Record<string, unknown>) => void
const ok: Reply = (response) => response.end('{"object":"chat.completion"}')
const failing =
  (status: number, code: string): Reply =>
  (response) => {
    response.writeHead(status, { 'x-skein-code': code })
    response.end(JSON.stringify({ error: { message: 'no', code } }))
  }

/** A cluster of nodes with these replies, and the requests of each. */
async function startRows(...replies: Reply[]) {
  const asked: { node: number; body: object; caller: ReturnType<CallerSeal['open']> }[] = []
  const members = await Promise.all(
    replies.map(async (reply, node): Promise<InformedMember> => {
      const server = createServer(async (request, response) => {
        const parts: Buffer[] = []
        for await (const part of request) parts.push(part)
        const body = JSON.parse(Buffer.concat(parts).toString())
        asked.push({ node, body, caller: seal.open(String(request.headers[CALLER_HEADER])) })
        reply(response, body)
      })
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      closing.push(() => {
        server.close()
        server.closeAllConnections()
      })
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
      const use = { slots: 4, inFlight: node === 0 ? 0 : 1 }
      return { id: `w${node}`, node: `n${node}`, url, model: 'goose', ...use, info: { ...FAKE_INFO } }
    }),
  )
  const list = { members: members as readonly InformedMember[] }
  const models = clusterRegistry(() => list.members)
  const rows = new ClusterRows({ nodes: nodesOf(() => list.members), models, seal })
  closing.push(() => rows.close())
  const run = (body: object) =>
    rows.run({ endpoint: '/v1/chat/completions', body, tenant: 'a', id: 'row 1' }, new AbortController().signal)
  return { rows, run, asked, list }
}

describe('rows of a batch in a cluster', () => {
  test('go to the node with most room, for their tenant, with low priority unless they set one', async () => {
    const { run, asked } = await startRows(ok, ok)
    expect(await run({ model: 'goose' })).toMatchObject({ status: 200, warnings: null })
    await run({ priority: 5 })
    expect(asked.map(({ node }) => node)).toEqual([0, 0])
    const [first, second] = asked.map(({ caller }) => caller.principal!)
    expect(first).toMatchObject({ tenant: 'a', role: 'user', limits: { priority: -100 } })
    expect(second!.limits).toMatchObject({ priority: 5, requestsPerMinute: null })
    expect(asked[0]!.caller).toMatchObject({ mayTake: true, origin: 'row 1' })
  })

  test('have no room if only reserved slots are free, or without nodes', async () => {
    const { rows, list } = await startRows(ok)
    const withUse = (inFlight: number) => {
      list.members = list.members.map((member) => ({ ...member, inFlight }))
      return rows.hasRoom({ model: 'goose' })
    }
    expect([2, 3, 4].map(withUse)).toEqual([true, false, false])
    // A request for something that is nowhere goes to any node, which says so.
    expect(rows.hasRoom({ model: 'no such model' })).toBe(true)
    list.members = []
    expect(rows.hasRoom({})).toBe(false)
  })

  test.each([
    ['a node that closes', (response: ServerResponse) => response.writeHead(503).end('{}')],
    ['a session on its way', failing(421, 'misdirected')],
    ['a full queue', failing(429, 'queue_full')],
    ['a connection that ends', (response: ServerResponse) => response.destroy()],
    [
      'an answer that ends in the middle',
      (response: ServerResponse) => {
        response.writeHead(200, { 'content-length': 100 })
        response.write('{', () => response.destroy())
      },
    ],
    [
      'an error after a reply had begun',
      (response: ServerResponse) => response.end('  {"error":{"code":"model_not_loaded"}}'),
    ],
  ])('%s is retried', async (_, reply) => {
    const { run } = await startRows(reply)
    await expect(run({})).rejects.toMatchObject({ code: 'model_not_loaded' })
  })

  test('an error of a node is a result, also a late one', async () => {
    const { run } = await startRows(failing(400, 'invalid_request'))
    expect(await run({})).toMatchObject({ status: 400, body: { error: { message: 'no' } } })
    const late = await startRows((response) =>
      response.end('  {"error":{"code":"context_length_exceeded","message":"late"}}'),
    )
    expect((await late.run({})).status).toBeGreaterThanOrEqual(400)
    // A reply of /v1/responses has the field, too.
    const whole = await startRows((response) => response.end('{"object":"response","error":null}'))
    expect(await whole.run({})).toMatchObject({ status: 200 })
  })

  test('rows with a mixture that only one node has are answered there', async () => {
    const unknown = failing(404, 'not_found')
    const { run, asked } = await startRows(unknown, ok)
    expect(await run({ model: 'goose mild' })).toMatchObject({ status: 200 })
    expect(asked.map(({ node }) => node)).toEqual([0, 1])
    const nowhere = await startRows(unknown, unknown)
    expect(await nowhere.run({ model: 'goose wild' })).toMatchObject({ status: 404 })
    expect(await nowhere.run({ model: 'duck' })).toMatchObject({ status: 404 })
    expect(nowhere.asked).toHaveLength(3)
  })
})
