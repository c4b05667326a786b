/** Sessions of real worker processes: killed, stopped, restarted, with the store's own thread. */
import { fork } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { DEMO } from '../helpers/cli.ts'
import { newFolder } from '../helpers/direct-store.ts'
import { answerTo, turnOf } from '../helpers/worker-turns.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')

async function start(dataDir: string, durable: boolean) {
  const choice = { model: DEMO, slots: 4, threads: 1, dataDir, durable }
  const child = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced' })
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve))
  const client = await RemoteEngineClient.connect(channelToChild(child))
  return { client, child, exited }
}

test('durable turns survive kill -9, others a graceful end, and the answers are bit-equal', async () => {
  const dataDir = newFolder()
  let worker = await start(dataDir, true)
  const expected = []
  for (let i = 0; i < 4; i++) expected.push(await answerTo(worker, turnOf(i, 'whole')))
  for (let i = 0; i < 4; i++) {
    expect(await answerTo(worker, turnOf(i, 'cut'))).toEqual(expected[i])
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
