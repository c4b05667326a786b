/** Two workers of one model and a store: sessions continue on either worker, and after one dies. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { WorkerRecord } from '../../src/gateway/contract.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { ENDLESS, openStream } from '../helpers/streams.ts'

const SOON = { timeout: 20_000 }

interface Reply {
  readonly choices: readonly { readonly text: string }[]
  readonly session: { readonly turn: number }
}

let server: RunningServer
beforeAll(async () => {
  server = await serve(['--replicas', '2', '--durable'])
})
afterAll(async () => {
  expect(await server.stop()).toBe(0)
})

async function post(path: string, body: object): Promise<Reply> {
  const reply = await postJson(server.url + path, body)
  expect(reply.status).toBe(200)
  return (await reply.json()) as Reply
}

async function workers(): Promise<WorkerRecord[]> {
  return (await (await fetch(`${server.url}/api/workers`)).json()) as WorkerRecord[]
}

const turn = (session_id: string, prompt: string, at = '') =>
  post(`${at}/v1/completions`, { prompt, session_id, max_tokens: 12, ...ENDLESS })

const PROMPTS = ['Once upon a time', ' and then', ' but the', ' so they']

test('a session that moves after every turn gives the answers of one that stays', { tags: 'night' }, async () => {
  const stays: string[] = []
  for (const prompt of PROMPTS) stays.push((await turn('stays', prompt)).choices[0]!.text)
  const both = await workers()
  const moves: string[] = []
  for (const [i, prompt] of PROMPTS.entries()) {
    const at = `/api/workers/${both[i % 2]!.worker_id}/proxy`
    const { choices, session } = await turn('moves', prompt, at)
    expect(session.turn).toBe(i + 1)
    moves.push(choices[0]!.text)
  }
  expect(moves).toEqual(stays)
  const list = await (await fetch(`${server.url}/v1/sessions`)).json()
  const { data } = list as { data: { id: string; head: number }[] }
  expect(data.map(({ id, head }) => [id, head]).sort()).toEqual([
    ['moves', 4],
    ['stays', 4],
  ])
})

test('if the worker of a session dies, the other one continues it', async () => {
  for (const { worker_id } of await workers()) {
    const id = `on ${worker_id}`
    const first = await turn(id, PROMPTS[0]!, `/api/workers/${worker_id}/proxy`)
    expect(first.session.turn).toBe(1)
  }
  const [victim, other] = await workers()
  process.kill(victim!.pid!, 'SIGKILL')
  const next = await Promise.all([
    turn(`on ${victim!.worker_id}`, PROMPTS[1]!),
    turn(`on ${other!.worker_id}`, PROMPTS[1]!),
  ])
  expect(next.map(({ session }) => session.turn)).toEqual([2, 2])
  expect(next[0]!.choices[0]!.text).toBe(next[1]!.choices[0]!.text)
  await expect.poll(async () => (await workers()).map(({ phase }) => phase), SOON).toEqual(['ready', 'ready'])
})

test('a third replica that cannot be loaded is listed as failed, and only two are expected', {
  tags: 'night',
}, async () => {
  const reply = await postJson(`${server.url}/api/workers/start`, { model_path: 'demo', gpu_id: 977 })
  const { worker_id } = (await reply.json()) as WorkerRecord
  const record = async () => (await workers()).find((worker) => worker.worker_id === worker_id)!
  await expect.poll(async () => (await record()).phase, SOON).toBe('failed')
  const { exit_code, reason, last_log } = await record()
  expect(exit_code).toBe(1)
  expect(reason).toMatch(/cuda|GPU|driver/i)
  expect(last_log.join('\n')).toContain(reason)
  expect(await (await fetch(`${server.url}/readyz`)).json()).toMatchObject({
    status: 'ok',
    models: [{ id: 'demo', state: 'ready', workers: { all: 2, ready: 2, failed: 1 } }],
  })
  await fetch(`${server.url}/api/workers/${worker_id}`, { method: 'DELETE' })
})

test('a worker that is stopped finishes its streams, and its sessions move', { tags: 'night' }, async () => {
  const [first] = await workers()
  const at = `${server.url}/api/workers/${first!.worker_id}/proxy`
  await turn('leaves', PROMPTS[0]!, `/api/workers/${first!.worker_id}/proxy`)
  const stream = openStream(at, { max_tokens: 150 })
  await expect.poll(() => stream.numEvents, SOON).toBeGreaterThan(0)
  await fetch(`${server.url}/api/workers/${first!.worker_id}/stop`, { method: 'POST' })
  expect((await turn('leaves', PROMPTS[1]!)).session.turn).toBe(2)
  expect(await stream.end).toMatchObject({ finishReason: 'length', error: null })
  await expect.poll(async () => (await workers())[0]!.phase, SOON).toBe('stopped')
  const ready = (await (await fetch(`${server.url}/readyz`)).json()) as { status: string }
  expect(ready.status).toBe('ok')
})
