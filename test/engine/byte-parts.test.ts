/** Files of large states go to a worker and back in parts, other messages between them. */
import { expect, test } from 'vitest'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { serveEngine } from '../../src/engine/client/worker-loop.ts'
import type { EngineCalls, FromWorker, ToWorker } from '../../src/engine/messages.ts'
import { channelPair } from '../helpers/channel-pair.ts'
import { Collected, promptOf, requestOf, soloAnswer } from './kit.ts'
import { answerAfter, setUp, turnOf } from './session-kit.ts'

/** A state of 1.3 MB. */
const LAYERS = 40_000
const PART_BYTES = 2 ** 18

async function connected() {
  const { engine } = setUp({ fake: { layers: LAYERS }, states: { prefixBytes: 0 } })
  const [gateway, worker] = channelPair<ToWorker, FromWorker>()
  const connecting = RemoteEngineClient.connect(gateway)
  void serveEngine(engine, worker)
  return { gateway, worker, client: await connecting }
}

async function answerOf(client: RemoteEngineClient, request: ReturnType<typeof requestOf>) {
  const collected = new Collected()
  for await (const event of client.generate(request)) collected.add([event])
  return collected.answer(request.id)
}

const sizesOf = (messages: readonly (ToWorker | FromWorker)[]) =>
  messages.flatMap((message) => (message.type === 'bytes' ? [message.part.length] : []))

test('a large state is exported and imported in parts, and the session goes on from it', async () => {
  const { gateway, worker, client } = await connected()
  const first = turnOf({ prompt: promptOf(20), maxTokens: 5 })
  const answer = await answerOf(client, first)
  const stream = answerOf(client, requestOf({ id: 'stream', maxTokens: 60 }))
  const files = await Promise.all(
    [1, 2].map(() => client.call('sessions.export', { tenant: '', id: 's' })),
  )
  const [bytes] = files as [EngineCalls['sessions.export']['result'], unknown]
  expect(files[1]).toEqual(bytes)
  expect(bytes.length).toBeGreaterThan(4 * PART_BYTES)
  const infos = await Promise.all(
    ['a', 'b'].map((id) => client.call('sessions.import', { tenant: '', id, bytes })),
  )
  expect(infos.map(({ id, head }) => [id, head])).toEqual([
    ['a', 1],
    ['b', 1],
  ])
  for (const sizes of [sizesOf(worker.sent), sizesOf(gateway.sent)]) {
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(2 * bytes.length)
    expect(Math.max(...sizes)).toBe(PART_BYTES)
  }
  const next = turnOf({ id: 'next', prompt: promptOf(4), maxTokens: 5 }, { id: 'b' })
  const history = Int32Array.of(...first.prompt, ...answer!.tokens)
  expect(await answerOf(client, next)).toEqual(answerAfter(history, next).answer)
  expect(await stream).toEqual(soloAnswer(requestOf({ maxTokens: 60 })))
  await client.close()
})

test('bytes that come damaged are refused, and the next ones are not mixed with them', async () => {
  const { client } = await connected()
  await answerOf(client, turnOf({ prompt: promptOf(20), maxTokens: 5 }))
  const bytes = await client.call('sessions.export', { tenant: '', id: 's' })
  const damaged = bytes.slice()
  damaged[bytes.length >> 1]! ^= 1
  const ask = (id: string, given: Uint8Array) =>
    client.call('sessions.import', { tenant: '', id, bytes: given })
  await expect(ask('bad', damaged)).rejects.toMatchObject({ code: 'invalid_request' })
  expect((await ask('good', bytes)).head).toBe(1)
  await client.close()
})
