/**
 * A worker whose model is divided over several backends: many answers at once, and sessions that move to other splits.
 */
// @module-tag night
import { fork } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import type { EngineChoice } from '../../src/host/model-choice.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { DEMO } from '../helpers/cli.ts'
import { newFolder } from '../helpers/direct-store.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')

const ONE: Partial<EngineChoice> = { device: 'cpu' }
const TWO: Partial<EngineChoice> = { ppDevices: ['cpu', 'cpu'] }
const THREE: Partial<EngineChoice> = { ppDevices: ['cpu', 'cpu', 'cpu'] }

async function withWorker<T>(own: Partial<EngineChoice>, use: (client: RemoteEngineClient) => Promise<T>): Promise<T> {
  const choice: EngineChoice = { model: DEMO, slots: 8, threads: 1, ...own }
  const child = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced' })
  const exited = new Promise((resolve) => child.once('exit', resolve))
  const client = await RemoteEngineClient.connect(channelToChild(child))
  try {
    return await use(client)
  } finally {
    await client.close()
    expect(await exited).toBe(0)
  }
}

function request(i: number, more: Partial<GenerateRequest> = {}): GenerateRequest {
  const prompt = Int32Array.from({ length: 20 + 30 * i }, (_, at) => 1 + ((at * 37 + i * 101) % 250))
  const sampling = { ...SAMPLING, seed: BigInt(i), topP: 0.9, presencePenalty: 0.5 * (i % 2) }
  return requestOf({ id: `r${i}`, prompt, maxTokens: 20 + i, sampling, logprobs: 1, ...more })
}

async function answerTo(client: RemoteEngineClient, asked: GenerateRequest) {
  const events: EngineEvent[] = []
  for await (const event of client.generate(asked)) events.push(event)
  const logprobs = events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []) : []))
  return { logprobs, finish: events.at(-1) }
}

test('many requests over three backends: the answers of one, each asked alone', async () => {
  const asked = Array.from({ length: 12 }, (_, i) => request(i))
  const alone = await withWorker(ONE, async (client) => {
    const answers = []
    for (const one of asked) answers.push(await answerTo(client, one))
    return answers
  })
  const together = await withWorker(THREE, async (client) => {
    expect(client.info.model.device).toMatch(/^pipeline of \d+ layers? on cpu: .*; .*; /)
    return Promise.all(asked.map((one) => answerTo(client, one)))
  })
  expect(together).toEqual(alone)
})

test('a session continued with other splits equals the session of one device', async () => {
  const turn = (i: number, id: string) =>
    request(i, { session: { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } })
  const play = async (dataDir: string, workers: readonly Partial<EngineChoice>[]) => {
    const turns = []
    for (const [i, own] of workers.entries())
      turns.push(await withWorker({ ...own, dataDir }, (client) => answerTo(client, turn(i, 's'))))
    return turns.map(({ logprobs }) => logprobs)
  }
  const expected = await play(newFolder(), [ONE, ONE, ONE, ONE])
  expect(await play(newFolder(), [TWO, ONE, THREE, TWO])).toEqual(expected)
})
