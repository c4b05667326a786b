/** Sessions of several worker processes with one data folder: races, moves under load, and a worker that is killed. */
// @module-tag night
import { fork } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import type { EngineEvent } from '../../src/engine/messages.ts'
import { DEMO } from '../helpers/cli.ts'
import { newFolder } from '../helpers/direct-store.ts'
import { writePth } from '../helpers/pth.ts'
import { answerTo, turnOf } from '../helpers/worker-turns.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')

interface Worker {
  readonly client: RemoteEngineClient
  kill(): Promise<void>
}

const workers: Worker[] = []

async function start(dataDir: string): Promise<Worker> {
  const choice = { model: DEMO, slots: 6, threads: 1, dataDir }
  const child = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced' })
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const client = await RemoteEngineClient.connect(channelToChild(child))
  const kill = () => {
    child.kill('SIGKILL')
    return exited
  }
  const worker = { client, kill }
  workers.push(worker)
  return worker
}

afterEach(async () => {
  for (const { client } of workers.splice(0)) await client.close()
})

const release = ({ client }: Worker, id: string) => client.call('sessions.release', { tenant: '', id })

test('a session that moves between two busy workers has the bits of one that never moved', async () => {
  const dataDir = newFolder()
  const [one, two] = [await start(dataDir), await start(dataDir)]
  const expected = []
  for (let i = 0; i < 5; i++) expected.push(await answerTo(one, turnOf(i, 'whole')))
  // Two streams on each all the time, which write to sessions of their own.
  let isOver = false
  const load = [one, two].flatMap((worker, w) =>
    [0, 1].map(async (stream) => {
      for (let i = 0; !isOver; i++) await answerTo(worker, turnOf(i % 7, `load ${w} ${stream}`))
    }),
  )
  for (let i = 0; i < 5; i++) {
    const [here, there] = i % 2 === 0 ? [one, two] : [two, one]
    expect(await answerTo(here, turnOf(i, 'moved'))).toEqual(expected[i])
    const refused = answerTo(there, turnOf(i, 'moved', { ifBusy: 'conflict' }))
    await expect(refused).rejects.toMatchObject({ code: 'conflict' })
    // Everyone may read; a turn that is written later may not be there yet.
    const seen = await there.client.call('sessions.get', { tenant: '', id: 'moved' }).catch(() => null)
    expect([null, i, i + 1]).toContain(seen?.head ?? null)
    await release(here, 'moved')
    expect(await there.client.call('sessions.get', { tenant: '', id: 'moved' })).toMatchObject({
      head: i + 1,
      isBusy: false,
    })
  }
  isOver = true
  await Promise.all(load)
  const lists = [one, two].map(async ({ client }) =>
    (await client.call('sessions.list', { tenant: '' })).map(({ id, head }) => ({ id, head })),
  )
  const [first, second] = await Promise.all(lists)
  expect(first!.map(({ id }) => id).sort()).toEqual(second!.map(({ id }) => id).sort())
  expect(first!.length).toBe(6)
}, 120_000)

test('if two workers create the same session, one succeeds; the other waits until it is released', async () => {
  const dataDir = newFolder()
  const [one, two] = [await start(dataDir), await start(dataDir)]
  for (let round = 0; round < 10; round++) {
    const id = `raced ${round}`
    const racers = [one, two].map((worker) =>
      answerTo(worker, turnOf(1, id, { ifBusy: 'conflict' })).then(
        ({ turn }) => turn,
        (error) => error.code,
      ),
    )
    const results = await Promise.all(racers)
    expect(results.toSorted()).toEqual([1, 'conflict'])
    const [winner, loser] = results[0] === 1 ? [one, two] : [two, one]
    const waiting = answerTo(loser, turnOf(2, id))
    await release(winner, id)
    expect((await waiting).turn).toBe(2)
  }
  // A request is writing, so it cannot be released.
  const long = answerTo(one, {
    ...turnOf(3, 'long'),
    stop: { strings: [], tokens: [], ignoreEos: true },
    maxTokens: 400,
  })
  await new Promise((resolve) => setTimeout(resolve, 50))
  await expect(release(one, 'long')).rejects.toMatchObject({ code: 'conflict' })
  await long
  await release(one, 'long')
  await release(one, 'unknown')
}, 120_000)

/** Everything under a folder, by name. */
function filesIn(folder: string): Map<string, Buffer> {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true })
  const paths = entries.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name))
  return new Map(paths.map((path) => [path, readFileSync(path)]))
}

test('deleted sessions are in no file any more, while the workers continue', async () => {
  const dataDir = newFolder()
  const [one, two] = [await start(dataDir), await start(dataDir)]
  for (let i = 0; i < 3; i++) {
    const prompt = Int32Array.from({ length: 60 }, (_, at) => 1 + ((at * at * 7 + i) % 250))
    await answerTo(one, { ...turnOf(i, 'doomed'), prompt })
    await answerTo(two, turnOf(9 - i, 'kept'))
  }
  const bytesOf = async (turn: number) => {
    const file = await one.client.call('sessions.export', { tenant: '', id: 'doomed', turn })
    // The tokens and parts of the state, but not the header, which is similar in all.
    const starts = [600, 20_000, 100_000, 300_000]
    return starts.map((at) => Buffer.from(file.subarray(at, at + 48)))
  }
  const traces = (await Promise.all([1, 2, 3].map(bytesOf))).flat()
  const { turns } = await one.client.call('sessions.get', { tenant: '', id: 'doomed' })
  expect(turns.length).toBe(3)
  await release(one, 'doomed')
  const found = () => {
    const files = [...filesIn(dataDir)]
    return traces.filter((trace) => files.some(([, bytes]) => bytes.includes(trace))).length
  }
  expect(found()).toBe(traces.length)
  expect([...filesIn(dataDir)].some(([, bytes]) => bytes.includes('doomed'))).toBe(true)
  await two.client.call('sessions.delete', { tenant: '', id: 'doomed' })
  expect(found()).toBe(0)
  for (const [path, bytes] of filesIn(dataDir)) expect([path, bytes.includes('doomed')]).toEqual([path, false])
  expect((await answerTo(two, turnOf(3, 'kept'))).turn).toBe(4)
}, 60_000)

test('a start state is added from a file and removed while the worker answers', async () => {
  const { client } = await start(newFolder())
  const { layers, heads, headSize } = client.info.model.stateShape
  const folder = newFolder()
  const path = join(folder, 'state.pth')
  const shape = [heads, headSize, headSize]
  const values = (layer: number) => Float32Array.from({ length: heads * headSize ** 2 }, (_, i) => Math.sin(i + layer))
  const tensors = Array.from({ length: layers }, (_, layer) => {
    return { name: `blocks.${layer}.att.time_state`, shape, values: values(layer) }
  })
  writePth(path, tensors)
  const add = (name: string, file: string) => client.call('startStates.add', { name, path: file })
  expect(await add('poet', path)).toEqual(['poet'])
  expect(client.info.startStates).toEqual(['poet'])
  await expect(add('other', DEMO)).rejects.toMatchObject({ code: 'state_incompatible' })
  await expect(add('other', join(folder, 'none.pth'))).rejects.toMatchObject({ code: 'not_found' })
  const request = { ...turnOf(1, 's'), session: undefined }
  const tokensOf = async (startState: string | undefined) => {
    const events: EngineEvent[] = []
    for await (const event of client.generate({ ...request, startState })) events.push(event)
    return events.flatMap((event) => (event.type === 'text' ? event.tokens : []))
  }
  expect(await tokensOf('poet')).not.toEqual(await tokensOf(undefined))
  expect(await client.call('startStates.remove', { name: 'poet' })).toEqual([])
  expect(client.info.startStates).toEqual([])
  await expect(tokensOf('poet')).rejects.toMatchObject({ code: 'not_found' })
}, 60_000)

test('sessions of a killed worker are available to another at once, at an earlier moment', async () => {
  const dataDir = newFolder()
  const survivor = await start(dataDir)
  const expected = []
  for (let i = 0; i < 4; i++) expected.push(await answerTo(survivor, turnOf(i, 'whole')))
  for (let round = 0; round < 3; round++) {
    const victim = await start(dataDir)
    const id = `taken ${round}`
    const numTold = round + 1
    for (let i = 0; i < numTold; i++) {
      expect(await answerTo(victim, turnOf(i, id))).toEqual(expected[i])
    }
    const cut = answerTo(victim, turnOf(numTold, id)).then(
      () => 'answered',
      (error) => error.code,
    )
    await new Promise((resolve) => setTimeout(resolve, 5 * round))
    await victim.kill()
    workers.splice(workers.indexOf(victim), 1)
    expect(['model_not_loaded', 'answered']).toContain(await cut)
    const began = performance.now()
    const found = await survivor.client.call('sessions.get', { tenant: '', id }).catch((error) => error.code)
    const head = found === 'not_found' ? 0 : found.head
    expect(head).toBeLessThanOrEqual(numTold + 1)
    const next = await answerTo(survivor, turnOf(head, id, { ifBusy: 'conflict' }))
    expect(performance.now() - began).toBeLessThan(2000)
    if (head < 4) expect(next).toEqual(expected[head])
  }
}, 120_000)
