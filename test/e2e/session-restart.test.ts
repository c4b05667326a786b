/** Sessions of real worker processes: killed, stopped, restarted, with the store's own thread. */
import { fork } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { DEMO } from '../helpers/cli.ts'
import { newFolder } from '../helpers/direct-store.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')

async function start(dataDir: string, durable: boolean) {
  const choice = { model: DEMO, slots: 4, threads: 1, dataDir, durable }
  const child = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced' })
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve))
  const client = await RemoteEngineClient.connect(channelToChild(child))
  return { client, child, exited }
}

function turnOf(i: number, id: string): GenerateRequest {
  const prompt = Int32Array.from({ length: 20 + i }, (_, at) => 1 + ((at * 37 + i * 101) % 250))
  const sampling = { ...SAMPLING, seed: BigInt(i), topP: 0.9 }
  const session = { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } as const
  const stop = { strings: ['e '], tokens: [], ignoreEos: true }
  return requestOf({ id: `r${i}`, prompt, maxTokens: 30, sampling, session, stop, logprobs: 1 })
}

async function answerTo(client: RemoteEngineClient, request: GenerateRequest) {
  const events: EngineEvent[] = []
  for await (const event of client.generate(request)) events.push(event)
  const logprobs = events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []) : []))
  const finish = events.at(-1)
  return { logprobs, turn: finish?.type === 'finish' ? finish.session?.turn : null }
}

test('durable turns survive kill -9, others a graceful end, and the answers are bit-equal', async () => {
  const dataDir = newFolder()
  let worker = await start(dataDir, true)
  const expected = []
  for (let i = 0; i < 4; i++) expected.push(await answerTo(worker.client, turnOf(i, 'whole')))
  for (let i = 0; i < 4; i++) {
    expect(await answerTo(worker.client, turnOf(i, 'cut'))).toEqual(expected[i])
    if (i < 2) {
      worker.child.kill('SIGKILL')
      await worker.exited
    } else {
      await worker.client.close()
      expect(await worker.exited).toBe(0)
    }
    worker = await start(dataDir, i === 0)
  }
  const sessions = await worker.client.call('sessions.list', { tenant: '' })
  expect(sessions.map(({ id, head }) => `${id} ${head}`).sort()).toEqual(['cut 4', 'whole 4'])
  await expect(worker.client.call('sessions.get', { tenant: 'x', id: 'cut' })).rejects.toMatchObject({
    code: 'not_found',
  })
  await worker.client.call('sessions.delete', { tenant: '', id: 'whole' })
  await worker.client.close()
  expect(await worker.exited).toBe(0)
})
