/**
 * Batches of a cluster as processes on loopback: created and read at a gateway, run by whichever node is alive, one
 * result per line.
 */
// @module-tag night
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import OpenAI, { toFile } from 'openai'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NODE = ['--device', 'cpu', '--threads', '1', '--slots', '4']
const LINES = 240
const ENDPOINT = '/v1/completions'
const KEY = 'sk-of-the-cluster'
const WAIT = { timeout: 120_000, interval: 50 }

interface Result {
  readonly custom_id: string
  readonly response: {
    readonly status_code: number
    readonly body: { readonly choices: readonly { readonly text: string }[] }
  }
}

describe.skipIf(NO_POSTGRES !== null)('batches of a cluster', { timeout: 300_000 }, () => {
  let postgres: Postgres
  let database: pg.Pool
  let members: string[]
  let gateway: RunningServer
  let client: OpenAI
  const nodes = new Map<string, RunningServer>()
  const blobs = pathToFileURL(mkdtempSync(join(tmpdir(), 'skein-blobs-'))).href

  const startNode = async (name: string) => {
    const own = ['--blobs', blobs, '--node-name', name]
    nodes.set(name, await serve([...NODE, ...members, ...own]))
  }
  const clientAt = (url: string, apiKey = KEY) => new OpenAI({ apiKey, baseURL: `${url}/v1`, maxRetries: 0 })

  beforeAll(async () => {
    postgres = await startPostgres()
    const url = postgres.newDatabase()
    members = ['--cluster', url, '--api-key', KEY]
    await Promise.all(['a', 'b', 'c'].map(startNode))
    gateway = await serve(members, 'gateway')
    client = clientAt(gateway.url)
    database = new pg.Pool({ connectionString: url })
  }, 300_000)

  afterAll(async () => {
    for (const { process } of [...nodes.values(), gateway]) process.kill('SIGKILL')
    await database?.end()
    postgres?.remove()
  })

  const bodyOf = (i: number) => ({
    ...{ prompt: [1 + (i % 200), 2, 3], max_tokens: 20, temperature: 0, ignore_eos: true },
    ...(i % 10 === 7 ? { model: 'no such model' } : {}),
  })
  const begin = async (count: number) => {
    const rows = Array.from({ length: count }, (_, i) => {
      return { custom_id: `row-${i}`, method: 'POST', url: ENDPOINT, body: bodyOf(i) }
    })
    const text = rows.map((row) => JSON.stringify(row)).join('\n')
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
    const at = { input_file_id: file.id, endpoint: ENDPOINT, completion_window: '24h' } as const
    return (await client.batches.create(at)).id
  }
  const linesOf = async (id: string | null | undefined) =>
    (await (await client.files.content(id!)).text())
      .trim()
      .split('\n')
      .map((line): Result => JSON.parse(line))
  const untilEnded = (id: string) =>
    vi.waitFor(async () => {
      const batch = await client.batches.retrieve(id)
      expect(batch.status).toBe('completed')
      return batch
    }, WAIT)
  const doneOf = async (id: string) => (await client.batches.retrieve(id)).request_counts?.completed ?? 0

  test('whichever node is killed or stopped, every line has exactly one result', async () => {
    const id = await begin(LINES)
    const untilDone = (least: number) =>
      vi.waitFor(async () => expect(await doneOf(id)).toBeGreaterThanOrEqual(least), WAIT)
    const end = async (name: string, how: NodeJS.Signals) => {
      const { process: child } = nodes.get(name)!
      const gone = once(child, 'exit')
      child.kill(how)
      await gone
    }
    await untilDone(1)
    await end('a', 'SIGKILL')
    const starting = startNode('a')
    await untilDone(LINES / 4)
    await end('b', 'SIGKILL')
    expect((await client.batches.retrieve(id)).status).toBe('in_progress')
    await starting
    await Promise.all([end('c', 'SIGTERM'), startNode('b')])
    const batch = await untilEnded(id)
    expect(batch.request_counts).toEqual({ total: LINES, completed: 216, failed: 24 })
    const all = Array.from({ length: LINES }, (_, i) => i)
    const [answers, errors] = await Promise.all([batch.output_file_id, batch.error_file_id].map(linesOf))
    const idsOf = (lines: readonly Result[]) => lines.map(({ custom_id }) => custom_id)
    expect(idsOf(answers!)).toEqual(all.filter((i) => i % 10 !== 7).map((i) => `row-${i}`))
    expect(idsOf(errors!)).toEqual(all.filter((i) => i % 10 === 7).map((i) => `row-${i}`))
    expect(new Set(errors!.map(({ response }) => response.status_code))).toEqual(new Set([404]))
    for (const { custom_id, response } of answers!.filter((_, i) => i % 12 === 0)) {
      const direct = await client.completions.create({
        ...bodyOf(Number(custom_id.slice('row-'.length))),
        model: 'demo',
      })
      expect([custom_id, response.body.choices[0]!.text]).toEqual([custom_id, direct.choices[0]!.text])
    }
    // Nothing is left behind, and every node reports that.
    expect((await database.query('select 1 from batch_line')).rowCount).toBe(0)
    const direct = clientAt(nodes.get('a')!.url)
    expect((await direct.batches.retrieve(id)).request_counts).toEqual(batch.request_counts)
  })

  test('rows of one batch run on all nodes at the same time', async () => {
    const id = await begin(LINES)
    const seen = new Set<string>()
    await vi.waitFor(async () => {
      const { rows } = await database.query('select node from worker where in_flight > 0')
      for (const { node } of rows) seen.add(node)
      expect(seen.size === 2 || (await client.batches.retrieve(id)).status === 'completed').toBe(true)
    }, WAIT)
    await untilEnded(id)
    expect([...seen].sort()).toEqual(['a', 'b'])
  })

  test('a gateway can cancel a batch and delete a file, and accepts forms of clients', async () => {
    const id = await begin(LINES)
    await client.batches.cancel(id)
    const status = async () => (await client.batches.retrieve(id)).status
    await vi.waitFor(async () => expect(await status()).toBe('cancelled'), WAIT)
    const batch = await client.batches.retrieve(id)
    expect(batch.request_counts!.completed + batch.request_counts!.failed).toBe(LINES)
    expect(await client.files.delete(batch.input_file_id)).toMatchObject({ deleted: true })
    await expect(client.files.retrieve(batch.input_file_id)).rejects.toMatchObject({ status: 404 })
    const form = new FormData()
    form.append('purpose', 'other')
    form.append('file', new Blob(['{}']), 'a.jsonl')
    const headers = { authorization: `Bearer ${KEY}` }
    const refused = await fetch(`${gateway.url}/v1/files`, { method: 'POST', body: form, headers })
    expect({ status: refused.status, body: await refused.json() }).toMatchObject({
      status: 400,
      body: { error: { param: 'purpose' } },
    })
    const stranger = clientAt(gateway.url, 'sk-of-another')
    await expect(stranger.files.list()).rejects.toMatchObject({ status: 401 })
  })
})
