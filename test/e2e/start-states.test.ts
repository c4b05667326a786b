/** Start states that are added to a model with two workers while it answers, and stay when a worker dies. */
import { copyFileSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { WorkerRecord } from '../../src/gateway/contract.ts'
import { DEMO, type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { ENDLESS, openStream } from '../helpers/streams.ts'
import { writeTunedState } from '../helpers/tuned-state.ts'

const SOON = { timeout: 20_000 }

let server: RunningServer
beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-states-'))
  const vocab = (path: string) => path.replace(/pth$/, 'vocab.txt')
  const model = join(folder, 'demo.pth')
  copyFileSync(DEMO, model)
  copyFileSync(vocab(DEMO), vocab(model))
  writeTunedState(join(folder, 'state.pth'), DEMO)
  writeTunedState(join(folder, 'wrong.pth'), DEMO, 1)
  server = await serve([model, '--replicas', '2', '--model-dir', folder])
})
afterAll(async () => {
  expect(await server.stop()).toBe(0)
})

async function post(path: string, body: object): Promise<Response> {
  return postJson(server.url + path, body)
}

async function workers(): Promise<WorkerRecord[]> {
  return (await (await fetch(`${server.url}/api/workers`)).json()) as WorkerRecord[]
}

const pids = async () => (await workers()).map(({ pid }) => pid)

const load = (file: string, name = 'poet') => post('/loadstatemodel', { state_filename: file, state_viewname: name })

/** The answer of each worker. */
async function answers(model: string): Promise<(string | number)[]> {
  const ask = async ({ worker_id }: WorkerRecord) => {
    const body = { model, prompt: 'Once upon a time', max_tokens: 12, ...ENDLESS }
    const reply = await post(`/api/workers/${worker_id}/proxy/v1/completions`, body)
    if (reply.status !== 200) return reply.status
    return ((await reply.json()) as { choices: { text: string }[] }).choices[0]!.text
  }
  return Promise.all((await workers()).map(ask))
}

test('a start state is added while streams continue, and is there after a crash', async () => {
  const before = await pids()
  const [plain, same] = await answers('')
  expect(plain).toBe(same)
  const stream = openStream(server.url, { max_tokens: 600 })
  await expect.poll(() => stream.numEvents, SOON).toBeGreaterThan(10)
  expect((await load('state.pth')).status).toBe(200)
  expect(stream.numEvents).toBeLessThan(600)
  const [poet, too] = await answers('@poet')
  expect(poet).toBe(too)
  expect(poet).not.toBe(plain)

  const refused = await load('wrong.pth')
  expect(refused.status).toBe(500)
  expect(((await refused.json()) as { detail: string }).detail).toContain('layers')
  expect(await answers('@poet')).toEqual([poet, poet])
  expect(await stream.end).toMatchObject({ finishReason: 'length', error: null })
  expect(await pids()).toEqual(before)

  process.kill(before[0]!, 'SIGKILL')
  await expect
    .poll(async () => (await workers()).map(({ phase, restarts }) => [phase, restarts]), SOON)
    .toEqual([
      ['ready', 1],
      ['ready', 0],
    ])
  expect((await pids())[0]).not.toBe(before[0])
  expect(await answers('@poet')).toEqual([poet, poet])
  for (const { spec } of await workers())
    expect(spec.states).toEqual([{ name: 'poet', path: expect.stringMatching(/state\.pth$/) }])
})

test('removed states are gone for good', { tags: 'night' }, async () => {
  const before = await pids()
  expect((await post('/removestatemodel', {})).status).toBe(200)
  expect(await answers('@poet')).toEqual([404, 404])
  expect(await pids()).toEqual(before)
  process.kill(before[1]!, 'SIGKILL')
  await expect.poll(async () => (await workers())[1]!.restarts, SOON).toBe(1)
  await expect.poll(async () => (await workers())[1]!.phase, SOON).toBe('ready')
  expect(await answers('@poet')).toEqual([404, 404])
})
