/** The overlapped loop in a worker and in this process: it polls steps in flight between other tasks. */
import { expect, test } from 'vitest'
import { doneFlight } from '../../src/backend/flight.ts'
import { LocalEngineClient } from '../../src/engine/client/local-client.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { serveEngine } from '../../src/engine/client/worker-loop.ts'
import type { EngineClient } from '../../src/engine/client.ts'
import { Engine } from '../../src/engine/engine.ts'
import { Flights } from '../../src/engine/flights.ts'
import type { FromWorker, GenerateRequest, ToWorker } from '../../src/engine/messages.ts'
import { channelPair } from '../helpers/channel-pair.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, promptOf, requestOf, SAMPLING, soloAnswer, tokenBytes, V } from './kit.ts'

const requests: GenerateRequest[] = Array.from({ length: 12 }, (_, i) =>
  requestOf({
    id: `r${i}`,
    prompt: promptOf(1 + 9 * i, i),
    n: 1 + (i % 2),
    maxTokens: 3 + 4 * i,
    sampling: { ...SAMPLING, seed: BigInt(i), presencePenalty: i % 3 },
    stop: { strings: i % 2 ? ['ab', 'ca'] : [], tokens: [20, 21], ignoreEos: false },
  }),
)

function lateEngine(patience: number) {
  const fake = new FakeRunner({ vocabSize: V, numSlots: 6 })
  const runner = new DeferredRunner(fake)
  runner.patience = patience
  const engine = new Engine(runner, tokenBytes, { poisonFreedSlots: true, prefillChunk: 20 })
  return { fake, runner, engine }
}

async function remote(engine: Engine) {
  const [gateway, worker] = channelPair<ToWorker, FromWorker>()
  const connecting = RemoteEngineClient.connect(gateway)
  void serveEngine(engine, worker)
  return connecting
}

async function answerOf(client: EngineClient, request: GenerateRequest): Promise<Collected> {
  const collected = new Collected()
  for await (const event of client.generate(request)) collected.add([event])
  return collected
}

/** Leaves a request after a few events. */
async function giveUp(client: EngineClient, request: GenerateRequest): Promise<void> {
  let seen = 0
  for await (const _ of client.generate(request)) if (++seen === 3) return
}

test.each([
  ['a worker', 0],
  ['a worker', 7],
  ['this process', 0],
  ['this process', 7],
])('in %s, with steps that are not done for %i polls: each answer as alone', async (where, patience) => {
  const { runner, engine } = lateEngine(patience)
  const client = where === 'a worker' ? await remote(engine) : new LocalEngineClient(engine)
  const leavers = requests.map((request) => giveUp(client, { ...request, id: `gone ${request.id}`, maxTokens: 90 }))
  const answers = await Promise.all(requests.map((request) => answerOf(client, request)))
  await Promise.all(leavers)
  for (const [i, request] of requests.entries()) {
    for (let index = 0; index < request.n; index++)
      expect(answers[i]!.answer(request.id, index)).toEqual(soloAnswer(request, index))
  }
  // A step that is done at the first poll is read before the next is launched.
  expect(runner.deepest).toBe(patience === 0 ? 1 : 2)
  expect(engine.failure).toBeNull()
  expect(engine.stats.aborted).toBeGreaterThan(5)
  await client.close()
})

test('a turn of the loop says that it has no work while a step is in flight, and how long that lasts', () => {
  const { fake, engine } = lateEngine(2)
  engine.submit(requestOf({ prompt: promptOf(4), maxTokens: 40 }))
  const kinds: string[] = []
  while (engine.hasWork) kinds.push(engine.turn() === null ? 'waits' : 'lands')
  expect(kinds.slice(0, 3)).toEqual(['waits', 'waits', 'lands'])
  expect(kinds.filter((kind) => kind === 'lands').length).toBe(fake.log.length)
  expect(engine.restMs).toBe(0)
})

test('a step is looked at again before it ends, later if the next one is queued behind it', () => {
  let now = 0
  const fake = new DeferredRunner(new FakeRunner({ vocabSize: V, numSlots: 6 }))
  const runner = Object.assign(fake, { launch: () => doneFlight([]) })
  const flights = new Flights(runner, undefined, () => now)
  const land = () => [...flights.land()]
  flights.launch([])
  now = 6
  land()
  flights.launch([])
  now = 7
  expect(flights.restMs).toBe(6 - 1 - 2.5)
  flights.launch([])
  expect(flights.restMs).toBe(6 - 1 - 0.5)
  now = 13
  expect(flights.restMs).toBe(0)
})
