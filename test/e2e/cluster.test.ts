/** A cluster as processes on loopback: nodes with the demo model, a gateway, PostgreSQL and a folder that all share. */
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import OpenAI, { toFile } from 'openai'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { childrenOf, type RunningServer, serve, skein } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NODE = ['--device', 'cpu', '--threads', '1', '--slots', '4']
const GREEDY = { temperature: 0, max_tokens: 12 }

describe.skipIf(NO_POSTGRES !== null)('a cluster', { timeout: 120_000 }, () => {
  let postgres: Postgres
  let members: string[]
  let gateway: RunningServer
  let solo: RunningServer
  const nodes = new Map<string, RunningServer>()

  const startNode = async (name: string) => {
    nodes.set(name, await serve([...NODE, ...members, ...blobs, '--node-name', name]))
  }
  const folder = mkdtempSync(join(tmpdir(), 'skein-blobs-'))
  const blobs = ['--blobs', pathToFileURL(folder).href]

  beforeAll(async () => {
    postgres = await startPostgres()
    members = ['--cluster', postgres.newDatabase()]
    const starting = [serve(NODE), serve(members, 'gateway')] as const
    await Promise.all(['a', 'b'].map(startNode))
    ;[solo, gateway] = await Promise.all(starting)
  }, 300_000)

  afterAll(async () => {
    const all = [...nodes.values(), gateway, solo].filter((server) => server !== undefined)
    for (const { process } of all) process.kill('SIGKILL')
    postgres?.remove()
  })

  const ask = async (url: string, body: object, path = '/v1/chat/completions') => {
    const reply = await postJson(`${url}${path}`, { ...GREEDY, ...body })
    const text = await reply.text()
    return { status: reply.status, node: reply.headers.get('x-skein-node'), text }
  }
  const say = (content: string, more: object = {}, url = gateway.url) =>
    ask(url, { messages: [{ role: 'user', content }], ...more })
  const contentOf = (reply: { readonly text: string }) =>
    (JSON.parse(reply.text) as { choices: { message: { content: string } }[] }).choices[0]!.message.content

  /** The answers of a single server to these turns of a session. */
  const alone = async (session_id: string, turns: readonly string[]) => {
    const answers: string[] = []
    for (const turn of turns) answers.push(contentOf(await say(turn, { session_id }, solo.url)))
    return answers
  }

  const untilSaved = async (session: string) => {
    const saved = async () => {
      const reply = await fetch(`${gateway.url}/v1/sessions/${session}`)
      const { turns: kept } = (await reply.json()) as { turns: { saved: boolean }[] }
      return kept.every(({ saved }) => saved)
    }
    await expect.poll(saved, { timeout: 30_000 }).toBe(true)
  }

  const untilBothAreKnown = async () => {
    const known = async () => {
      const reply = await fetch(`${gateway.url}/api/cluster`)
      const { nodes: all } = (await reply.json()) as { nodes: { node: string }[] }
      return all.map(({ node }) => node).sort()
    }
    await expect.poll(known, { timeout: 60_000 }).toEqual(['a', 'b'])
  }

  test('knows its nodes, and acts as one server', async () => {
    await untilBothAreKnown()
    const models = await (await fetch(`${gateway.url}/v1/models`)).json()
    expect(models).toMatchObject({ data: [{ id: 'demo', num_slots: 8 }] })
    const direct = contentOf(await say('What is the capital of France?', {}, nodes.get('a')!.url))
    const reply = await say('What is the capital of France?')
    expect(contentOf(reply)).toBe(direct)
  })

  test('a batch sent to the gateway is run by the nodes', async () => {
    const client = new OpenAI({ apiKey: 'none', baseURL: `${gateway.url}/v1`, maxRetries: 0 })
    const prompts = ['The cat', 'A dog', 'Once', 'The sun']
    const body = (prompt: string) => ({ ...GREEDY, model: 'demo', prompt })
    const rows = prompts.map((prompt, i) => {
      return { custom_id: `row-${i}`, method: 'POST', url: '/v1/completions', body: body(prompt) }
    })
    const text = rows.map((row) => JSON.stringify(row)).join('\n')
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
    const at = { input_file_id: file.id, endpoint: '/v1/completions', completion_window: '24h' } as const
    const { id } = await client.batches.create(at)
    await expect.poll(async () => (await client.batches.retrieve(id)).status, { timeout: 60_000 }).toBe('completed')
    const { output_file_id } = await client.batches.retrieve(id)
    const lines = (await (await client.files.content(output_file_id!)).text()).trim().split('\n')
    const answers = lines.map((line) => JSON.parse(line).response.body.choices[0].text)
    const direct = prompts.map(async (prompt) => (await client.completions.create(body(prompt))).choices[0]!.text)
    expect(answers).toEqual(await Promise.all(direct))
  })

  test('doctor finds the database, the storage and both nodes', async () => {
    const { code, stdout } = await skein(['doctor', '--json', ...members, ...blobs])
    const { isUsable, findings } = JSON.parse(stdout)
    expect({ code, isUsable }).toEqual({ code: 0, isUsable: true })
    expect(findings.map(({ what }: { what: string }) => what)).toEqual([
      ...['database', 'clock', 'storage', 'node a', 'node b'],
    ])
    const nowhere = await skein(['doctor', '--json', '--cluster', 'postgres://127.0.0.1:1/none'])
    expect(JSON.parse(nowhere.stdout)).toMatchObject({ isUsable: false })
  })

  test('a session moves when its node stops, with the same answers, and no request fails', async () => {
    const turns = ['My name is Ada.', 'What is my name?', 'And the capital of Italy?']
    const expected = await alone('s', turns)
    const first = await say(turns[0]!, { session_id: 's' })
    expect(contentOf(first)).toBe(expected[0])
    const home = first.node!
    const other = home === 'a' ? 'b' : 'a'
    const statuses: number[] = []
    let isOver = false
    const load = (async () => {
      for (let i = 0; !isOver; i++) statuses.push((await say(`Number ${i}`)).status)
    })()
    const ended = nodes.get(home)!.stop()
    const second = await say(turns[1]!, { session_id: 's' })
    expect({ node: second.node, text: contentOf(second) }).toEqual({ node: other, text: expected[1] })
    expect(await ended).toBe(0)
    isOver = true
    await load
    expect(new Set(statuses)).toEqual(new Set([200]))
    await startNode(home)
    expect(contentOf(await say(turns[2]!, { session_id: 's' }))).toBe(expected[2])
  })

  test('a session of a killed node continues elsewhere at its last turn', async () => {
    const turns = ['Count to three.', 'Go on.']
    const expected = await alone('k', turns)
    const first = await say(turns[0]!, { session_id: 'k' })
    expect(contentOf(first)).toBe(expected[0])
    await untilSaved('k')
    const { process } = nodes.get(first.node!)!
    const gone = once(process, 'exit')
    process.kill('SIGKILL')
    await gone
    const second = await say(turns[1]!, { session_id: 'k' })
    expect(second, second.text).toMatchObject({ status: 200 })
    expect(second.node).not.toBe(first.node)
    expect(contentOf(second)).toBe(expected[1])
  })

  test('a worker that dies loses its lease, and its sessions continue elsewhere', { tags: 'night' }, async () => {
    for (const [name, { process: own }] of nodes)
      if (own.exitCode !== null || own.signalCode !== null) await startNode(name)
    await untilBothAreKnown()
    const turns = ['Count to five.', 'Go on.']
    const expected = await alone('w', turns)
    const first = await say(turns[0]!, { session_id: 'w' })
    expect(contentOf(first)).toBe(expected[0])
    await untilSaved('w')
    const database = new pg.Client(members[1]!)
    await database.connect()
    const rowsOf = async (pid: number) =>
      (await database.query("select id from worker where info->>'pid' = $1", [String(pid)])).rowCount
    const [worker] = await childrenOf(nodes.get(first.node!)!.process.pid!)
    expect(await rowsOf(worker!)).toBe(1)
    process.kill(worker!, 'SIGKILL')
    // A finished one stays for ten minutes.
    await expect.poll(() => rowsOf(worker!), { timeout: 60_000 }).toBe(0)
    await database.end()
    const second = await say(turns[1]!, { session_id: 'w' })
    expect(second, second.text).toMatchObject({ status: 200 })
    expect(contentOf(second)).toBe(expected[1])
  })

  test('the first key, made at the gateway, closes the whole cluster', async () => {
    const made = await postJson(`${gateway.url}/api/keys`, { name: 'ada', role: 'admin' })
    const { secret } = (await made.json()) as { secret: string }
    const [node] = [...nodes.values()].filter(({ process }) => process.exitCode === null && process.signalCode === null)
    for (const { url } of [gateway, node!]) {
      const statusWith = async (headers: Record<string, string>) =>
        (await fetch(`${url}/v1/models`, { headers })).status
      await expect.poll(() => statusWith({}), { timeout: 30_000 }).toBe(401)
      expect(await statusWith({ authorization: `Bearer ${secret}` })).toBe(200)
    }
  })
})
