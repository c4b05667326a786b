/** Files of requests, and batches over them, with the client that supports them. */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import type OpenAI from 'openai'
import { toFile } from 'openai'
import { afterAll, afterEach, expect, test, vi } from 'vitest'
import { BatchRunner, type RowRunner } from '../../src/api/batches/runner.ts'
import { FolderBatchStore } from '../../src/batches/folder-store.ts'
import { SkeinError } from '../../src/errors.ts'
import { answer, endless, FAKE_INFO, type Script } from '../helpers/fake-engine.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { type Served, serve } from './kit.ts'
import { openAiOf } from './openai.ts'

const WAIT = { timeout: 20_000, interval: 20 }
const CHATS = '/v1/chat/completions'

interface Line {
  readonly custom_id: string
  readonly response: { readonly status_code: number; readonly body: Record<string, unknown> } | null
  readonly error: { readonly code: string } | null
}

const open: Served[] = []
afterEach(async () => {
  for (const { app } of open.splice(0)) await app.close()
})

async function started(folder: string, script?: Script, options = {}) {
  const store = new FolderBatchStore(folder)
  const info = { ...FAKE_INFO, embeddings: 'mean' } as const
  const served = serve(script, { keys: ['sk-a', 'sk-b'], batches: store, ...options }, info)
  open.push(served)
  served.engine.waiting = 0
  const { app } = served
  return { ...served, store, client: await openAiOf(app, 'sk-a'), other: await openAiOf(app, 'sk-b') }
}

function requestsOf(count: number, body: (i: number) => object, url = CHATS): string {
  const rows = Array.from({ length: count }, (_, i) => {
    return { custom_id: `row-${i}`, method: 'POST', url, body: body(i) }
  })
  return rows.map((row) => JSON.stringify(row)).join('\n')
}

const chat = (i: number) => ({ messages: [{ role: 'user', content: `Number ${i}` }] })

async function begin(client: OpenAI, text: string, endpoint: OpenAI.BatchCreateParams['endpoint'] = CHATS) {
  const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
  return client.batches.create({ input_file_id: file.id, endpoint, completion_window: '24h' })
}

const ENDED = ['completed', 'failed', 'cancelled', 'expired']

async function ended(client: OpenAI, id: string) {
  return vi.waitFor(async () => {
    const batch = await client.batches.retrieve(id)
    expect(ENDED).toContain(batch.status)
    return batch
  }, WAIT)
}

async function linesOf(client: OpenAI, id: string | null | undefined): Promise<Line[]> {
  if (id == null) return []
  const text = await (await client.files.content(id)).text()
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)
}

const byId = (lines: readonly Line[]) => lines.map(({ custom_id }) => custom_id)

test('rows of a batch come after all other requests, unless they set a priority', async () => {
  const { client, engine } = await started(temporaryFolder())
  const own = [undefined, null, -3]
  const batch = await begin(
    client,
    requestsOf(3, (i) => ({ ...chat(i), priority: own[i] })),
  )
  expect((await ended(client, batch.id)).request_counts).toMatchObject({ completed: 3 })
  const priorities = engine.requests.map(({ priority }) => priority)
  expect(priorities.sort()).toEqual([-100, -100, -3])
})

test('a batch of chats: one result per line, in the order of the input', async () => {
  const { client, engine } = await started(temporaryFolder())
  const batch = await begin(client, requestsOf(40, chat))
  expect(batch).toMatchObject({ object: 'batch', status: 'validating', metadata: null })
  const done = await ended(client, batch.id)
  expect(done).toMatchObject({
    status: 'completed',
    request_counts: { total: 40, completed: 40, failed: 0 },
    error_file_id: null,
  })
  expect(done.completed_at).toBeGreaterThanOrEqual(done.in_progress_at!)
  const lines = await linesOf(client, done.output_file_id)
  expect(byId(lines)).toEqual(Array.from({ length: 40 }, (_, i) => `row-${i}`))
  expect(lines[7]).toMatchObject({
    response: { status_code: 200, body: { object: 'chat.completion', model: 'goose' } },
    error: null,
  })
  expect(engine.requests).toHaveLength(40)
  expect(JSON.stringify((await client.batches.list()).data[0])).toBe(JSON.stringify(done))
})

test.each([
  ['/v1/completions', { prompt: 'a' }, 'text_completion'],
  ['/v1/embeddings', { input: 'a' }, 'list'],
  ['/v1/responses', { input: 'a', store: false }, 'response'],
] as const)('%s', async (endpoint, body, object) => {
  const { client } = await started(temporaryFolder())
  const batch = await begin(
    client,
    requestsOf(2, () => body, endpoint),
    endpoint,
  )
  const done = await ended(client, batch.id)
  const lines = await linesOf(client, done.output_file_id)
  expect(lines.map(({ response }) => response?.body.object)).toEqual([object, object])
})

test('a request that its route refuses is a line of the error file, and the others are answered', async () => {
  const { client } = await started(temporaryFolder())
  const wrong = [{ messages: 'no' }, { messages: [], temperature: 99 }, { model: 'swan', ...chat(0) }]
  const batch = await begin(
    client,
    requestsOf(5, (i) => wrong[i] ?? chat(i)),
  )
  const done = await ended(client, batch.id)
  expect(done.request_counts).toEqual({ total: 5, completed: 2, failed: 3 })
  expect(byId(await linesOf(client, done.output_file_id))).toEqual(['row-3', 'row-4'])
  const errors = await linesOf(client, done.error_file_id)
  expect(errors.map(({ response }) => response?.status_code)).toEqual([400, 400, 404])
  expect(errors[1]?.response?.body).toMatchObject({ error: { type: 'invalid_request_error' } })
})

test('an input file with an invalid line runs nothing and names the line', async () => {
  const { client, engine } = await started(temporaryFolder())
  const good = requestsOf(2, chat)
  const cases = [
    ['', 'empty_file', null],
    [`${good}\n{"custom_id"`, 'invalid_line', 3],
    [`${good}\n${good.split('\n')[0]}`, 'duplicate_custom_id', 3],
    [requestsOf(1, chat, '/v1/completions'), 'invalid_line', 1],
    [requestsOf(1, (i) => ({ ...chat(i), stream: true })), 'invalid_line', 1],
  ] as const
  for (const [text, code, line] of cases) {
    const done = await ended(client, (await begin(client, text)).id)
    expect(done.status).toBe('failed')
    expect(done.errors?.data?.[0]).toMatchObject({ code, line })
  }
  expect(engine.requests).toEqual([])
})

test('a cancelled batch stops, and every line has exactly one result', async () => {
  let numAnswered = 0
  const { client, engine } = await started(temporaryFolder(), (request, signal) =>
    numAnswered++ < 3 ? answer(request, ' Yes.') : endless(request, signal),
  )
  const batch = await begin(client, requestsOf(30, chat))
  await vi.waitFor(async () => {
    const { request_counts } = await client.batches.retrieve(batch.id)
    expect(request_counts?.completed).toBe(3)
  }, WAIT)
  expect((await client.batches.cancel(batch.id)).status).toBe('cancelling')
  const done = await ended(client, batch.id)
  expect(done).toMatchObject({ status: 'cancelled', request_counts: { total: 30, completed: 3, failed: 27 } })
  const output = await linesOf(client, done.output_file_id)
  const errors = await linesOf(client, done.error_file_id)
  expect(new Set(byId([...output, ...errors])).size).toBe(30)
  expect(errors[0]).toMatchObject({ response: null, error: { code: 'batch_cancelled' } })
  // A quarter of the 16 slots is reserved for others.
  expect(engine.requests.length).toBeLessThanOrEqual(3 + 12)
  await expect(client.batches.cancel(batch.id)).rejects.toMatchObject({ status: 409 })
})

test('a restarted server continues where it stopped, and no line is answered twice', async () => {
  const folder = temporaryFolder()
  let numAnswered = 0
  const first = await started(folder, (request, signal) =>
    numAnswered++ < 5 ? answer(request, ' First.') : endless(request, signal),
  )
  const batch = await begin(first.client, requestsOf(20, chat))
  await vi.waitFor(async () => {
    const { request_counts } = await first.client.batches.retrieve(batch.id)
    expect(request_counts?.completed).toBe(5)
  }, WAIT)
  await first.app.close()
  const second = await started(folder, (request) => answer(request, ' Second.'))
  const done = await ended(second.client, batch.id)
  const lines = await linesOf(second.client, done.output_file_id)
  expect(byId(lines)).toEqual(Array.from({ length: 20 }, (_, i) => `row-${i}`))
  expect(second.engine.requests).toHaveLength(15)
})

test('temporary errors are retried: no room, a worker that restarts', async () => {
  const failures = [new SkeinError('queue_full', 'later'), new SkeinError('model_not_loaded', 'later')]
  const { client } = await started(temporaryFolder(), (request) => {
    const failure = failures.pop()
    if (failure !== undefined) throw failure
    return answer(request, ' Yes.')
  })
  const done = await ended(client, (await begin(client, requestsOf(3, chat))).id)
  expect(done.request_counts).toEqual({ total: 3, completed: 3, failed: 0 })
})

test('other requests come first: nothing runs while they wait', async () => {
  const { client, engine } = await started(temporaryFolder())
  engine.waiting = 1
  const batch = await begin(client, requestsOf(3, chat))
  await vi.waitFor(async () => {
    expect((await client.batches.retrieve(batch.id)).status).toBe('in_progress')
  }, WAIT)
  expect(engine.requests).toEqual([])
  engine.waiting = 0
  expect((await ended(client, batch.id)).request_counts?.completed).toBe(3)
})

test('a repeated turn of a session is reported as such', async () => {
  let isFirst = true
  const script: Script = (request) => {
    if (!isFirst || request.session?.id !== 's1') return answer(request, 'yes')
    isFirst = false
    throw new SkeinError('model_not_loaded', 'it ended when it had written its turn')
  }
  const { client, engine } = await started(temporaryFolder(), script)
  const batch = await begin(
    client,
    requestsOf(2, (i) => ({ ...chat(i), session_id: `s${i}` })),
  )
  expect((await ended(client, batch.id)).request_counts?.completed).toBe(2)
  const asked = engine.requests.map(({ session }) => [session!.id, session!.origin])
  expect(asked.sort()).toEqual([
    ['s0', `batch_req_${batch.id}_0`],
    ['s1', `batch_req_${batch.id}_1`],
    ['s1', `batch_req_${batch.id}_1`],
  ])
})

/** At 1,000 s, a batch of two chats that expires at 4,600. */
async function addTwoChats(store: FolderBatchStore): Promise<void> {
  const file = { id: 'file-a', tenant: 'a', filename: 'a', purpose: 'batch', created: 1000 }
  const content = Buffer.from(requestsOf(2, chat))
  await store.addFile({ ...file, bytes: content.length, expires: null }, content, 10_000)
  const data = {
    ...{ endpoint: CHATS, inputFile: 'file-a', window: '1h', metadata: null, expires: 4600 },
    ...{ outputSeconds: 60, total: 0, outputFile: null, errorFile: null, errors: [], times: {} },
    counts: null,
  }
  await store.addBatch({ id: 'b', tenant: 'a', status: 'validating', created: 1000, data }, 1)
}

test('an expired batch says so in its lines', async () => {
  const store = new FolderBatchStore(temporaryFolder())
  let now = 1000
  const rows: RowRunner = {
    hasRoom: () => true,
    run: (_, signal) =>
      new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
  }
  const bounds = { lines: 10, lineBytes: 1000 }
  const onError = vi.fn()
  const runner = new BatchRunner({ store, rows, bounds, onError, now: () => now })
  await addTwoChats(store)
  runner.start()
  const statusNow = async () => (await store.batch('a', 'b'))?.status
  await vi.waitFor(async () => expect(await statusNow()).toBe('in_progress'), WAIT)
  now = 4600
  await vi.waitFor(async () => expect(await statusNow()).toBe('expired'), WAIT)
  const error = (await store.file('a', (await store.batch('a', 'b'))!.data.errorFile!))!
  const lines = Buffer.from(await store.read(error))
    .toString()
    .trim()
    .split('\n')
  expect(lines.map((line) => (JSON.parse(line) as Line).error?.code)).toEqual(['batch_expired', 'batch_expired'])
  // Result files expire separately.
  expect(error.expires).toBe(4660)
  now = 4660
  await store.tidy(now)
  expect(await store.file('a', error.id)).toBeNull()
  await runner.stop()
  expect(onError).not.toHaveBeenCalled()
})

test('a server that has lost its lease stops, and finishes nothing', async () => {
  const store = new FolderBatchStore(temporaryFolder())
  let running: AbortSignal | undefined
  const rows: RowRunner = {
    hasRoom: () => true,
    run: (_, signal) => {
      running = signal
      return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    },
  }
  const onError = vi.fn()
  const bounds = { lines: 10, lineBytes: 1000 }
  const runner = new BatchRunner({ store, rows, bounds, onError, now: () => 1000 })
  await addTwoChats(store)
  runner.start()
  await vi.waitFor(() => expect(running).toBeDefined(), WAIT)
  // As after a pause: by now the batch belongs to another server.
  vi.spyOn(store, 'claim').mockResolvedValue(false)
  await vi.waitFor(() => expect(running?.aborted).toBe(true), WAIT)
  expect((await store.batch('a', 'b'))?.status).toBe('in_progress')
  expect((await store.linesDone('b')).size).toBe(0)
  await runner.stop()
  expect(onError).not.toHaveBeenCalled()
})

test('two servers over one folder run a batch once', async () => {
  const folder = temporaryFolder()
  const servers = [await started(folder), await started(folder)]
  const batches = await Promise.all(servers.map(({ client }) => begin(client, requestsOf(10, chat))))
  for (const { id } of batches) {
    const done = await ended(servers[0]!.client, id)
    expect(byId(await linesOf(servers[0]!.client, done.output_file_id))).toHaveLength(10)
  }
  const numAsked = servers.reduce((sum, { engine }) => sum + engine.requests.length, 0)
  expect(numAsked).toBe(20)
})

test('files are listed, read and deleted by their owner only', async () => {
  const folder = temporaryFolder()
  const { client, other } = await started(folder)
  const file = await client.files.create({
    file: await toFile(Buffer.from('{}\n'), 'one.jsonl'),
    purpose: 'batch',
    expires_after: { anchor: 'created_at', seconds: 3600 },
  })
  expect(file).toMatchObject({ object: 'file', bytes: 3, filename: 'one.jsonl', purpose: 'batch' })
  expect(file.expires_at).toBe(file.created_at + 3600)
  expect((await client.files.list()).data).toEqual([file])
  expect(await client.files.retrieve(file.id)).toEqual(file)
  expect(await (await client.files.content(file.id)).text()).toBe('{}\n')
  expect((await other.files.list()).data).toEqual([])
  await expect(other.files.retrieve(file.id)).rejects.toMatchObject({ status: 404 })
  await expect(other.files.delete(file.id)).rejects.toMatchObject({ status: 404 })
  const stolen = { input_file_id: file.id, endpoint: CHATS, completion_window: '24h' } as const
  await expect(other.batches.create(stolen)).rejects.toMatchObject({ param: 'input_file_id' })
  expect(await client.files.delete(file.id)).toMatchObject({ deleted: true })
  await expect(client.files.content(file.id)).rejects.toMatchObject({ status: 404 })
  expect(readdirSync(folder).filter((name) => name.includes('jsonl'))).toEqual([])
})

test('limits of a file, of all files and of batches', async () => {
  const limits = { fileBytes: 3000, tenantFileBytes: 5000, batchRequests: 10, tenantBatches: 1 }
  const { client, other } = await started(temporaryFolder(), endless, { limits })
  const upload = async (one: OpenAI, bytes: number) =>
    one.files.create({ file: await toFile(Buffer.alloc(bytes, 32), 'a.jsonl'), purpose: 'batch' })
  await expect(upload(client, 3001)).rejects.toMatchObject({ status: 413 })
  await expect(upload(client, 100_000)).rejects.toMatchObject({ status: 413 })
  await upload(client, 2900)
  await expect(upload(client, 2900)).rejects.toMatchObject({ status: 413 })
  await upload(other, 2900)
  const long = await ended(client, (await begin(client, requestsOf(11, chat))).id)
  expect(long.errors?.data?.[0]?.code).toBe('too_many_requests')
  await begin(client, requestsOf(1, chat))
  await expect(begin(client, requestsOf(1, chat))).rejects.toMatchObject({ status: 429 })
  await expect(
    client.files.create({ file: await toFile(Buffer.from('a'), 'a'), purpose: 'fine-tune' }),
  ).rejects.toMatchObject({ param: 'purpose' })
})

test('without a data folder both are refused with a hint', async () => {
  const { app } = serve()
  for (const url of ['/v1/files', '/v1/batches']) {
    const reply = await app.inject({ url })
    expect(reply.statusCode).toBe(404)
    expect(reply.body).toContain('--data-dir')
  }
})

test('a form that a web page can send without a preflight is refused', async () => {
  const { app } = await started(join(temporaryFolder(), 'not', 'there'))
  const headers = {
    authorization: 'Bearer sk-a',
    'content-type': 'multipart/form-data; boundary=x',
    'sec-fetch-site': 'cross-site',
  }
  const reply = await app.inject({ method: 'POST', url: '/v1/files', headers, payload: '--x--' })
  expect(reply.statusCode).toBe(415)
})

test.each([
  [undefined, 415, 'Content-Type: multipart/form-data'],
  ['application/json', 415, 'Content-Type: multipart/form-data'],
  ['multipart/form-data; boundary=x', 400, 'not a readable multipart form'],
])('a request without a form is reported (%s)', async (type, status, words) => {
  const { app } = await started(join(temporaryFolder(), 'not', 'there'))
  const headers = { authorization: 'Bearer sk-a', ...(type !== undefined && { 'content-type': type }) }
  const reply = await app.inject({ method: 'POST', url: '/v1/files', headers })
  expect(reply.statusCode).toBe(status)
  expect(reply.json().error.message).toContain(words)
})

afterAll(() => expect(open).toEqual([]))
