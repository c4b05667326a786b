import { describe, expect, test } from 'vitest'
import { EventQueue, LiveQueues } from '../../src/engine/client/event-queues.ts'
import { LocalEngineClient } from '../../src/engine/client/local-client.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { serveEngine } from '../../src/engine/client/worker-loop.ts'
import type { EngineClient } from '../../src/engine/client.ts'
import { Engine } from '../../src/engine/engine.ts'
import type { EngineLimits } from '../../src/engine/limits.ts'
import type { EngineEvent, FromWorker, ToWorker } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { channelPair } from '../helpers/channel-pair.ts'
import { type FakeOptions, FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, promptOf, requestOf, soloAnswer, tokenBytes, V } from './kit.ts'

interface SetUp {
  readonly runner: FakeRunner
  readonly engine: Engine
  readonly client: EngineClient
}

function setUpEngine(options: FakeOptions, limits: Partial<EngineLimits>) {
  const runner = new FakeRunner({ vocabSize: V, ...options })
  return { runner, engine: new Engine(runner, tokenBytes, { poisonFreedSlots: true, ...limits }) }
}

async function setUpLocal(options: FakeOptions = {}, limits: Partial<EngineLimits> = {}): Promise<SetUp> {
  const { runner, engine } = setUpEngine(options, limits)
  return { runner, engine, client: new LocalEngineClient(engine) }
}

async function setUpRemote(options: FakeOptions = {}, limits: Partial<EngineLimits> = {}) {
  const { runner, engine } = setUpEngine(options, limits)
  const [gateway, worker] = channelPair<ToWorker, FromWorker>()
  const connecting = RemoteEngineClient.connect(gateway)
  const exitCode = serveEngine(engine, worker)
  return { runner, engine, gateway, worker, exitCode, client: await connecting }
}

async function collect(events: AsyncIterable<EngineEvent>): Promise<Collected> {
  const collected = new Collected()
  for await (const event of events) collected.add([event])
  return collected
}

async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise
  } catch (error) {
    return error instanceof SkeinError ? error.code : String(error)
  }
  return 'nothing thrown'
}

const turn = () => new Promise((resolve) => setImmediate(resolve))

/** A few turns of the event loop: time for messages to arrive, and for a step or two. */
async function settle(): Promise<void> {
  for (let i = 0; i < 8; i++) await turn()
}

describe.each([
  ['local', setUpLocal],
  ['remote', setUpRemote],
])('%s client', (_, setUp: (o?: FakeOptions, l?: Partial<EngineLimits>) => Promise<SetUp>) => {
  test('64 simultaneous requests get the answers that they get alone', async () => {
    const { client, engine } = await setUp({ numSlots: 16, maxTokens: 64 })
    const requests = Array.from({ length: 64 }, (_, i) =>
      requestOf({ id: `r${i}`, prompt: promptOf(1 + i, i), maxTokens: 1 + (i % 20), n: 1 + (i % 3) }),
    )
    const all = await Promise.all(requests.map((request) => collect(client.generate(request))))
    for (const [i, request] of requests.entries()) {
      for (let index = 0; index < request.n; index++) {
        expect(all[i]?.answer(request.id, index)).toEqual(soloAnswer(request, index))
      }
    }
    expect(engine.stats.freeSlots).toBe(16)
    await settle()
    expect(client.stats).toMatchObject({ running: 0, waiting: 0, finishedLength: 127 })
    await client.close()
  })

  test('leaving the loop cancels before the next step but one', async () => {
    const { client, engine } = await setUp()
    const request = requestOf({ n: 3, maxTokens: 100_000 })
    for await (const event of client.generate(request)) if (event.type === 'text') break
    await settle()
    expect(engine.stats).toMatchObject({ running: 0, freeSlots: 8, aborted: 1 })
    expect(client.stats).toMatchObject({ running: 0, freeSlots: 8, aborted: 1 })
    expect(engine.stats.steps).toBeLessThan(40)
    await client.close()
  })

  test.each([0, 1, 5, 30])('aborting after %i turns throws aborted and frees the slots', async (turns) => {
    const { client, engine } = await setUp({ maxTokens: 16 })
    const abort = new AbortController()
    const prompt = promptOf(160)
    const run = codeOf(collect(client.generate(requestOf({ prompt, maxTokens: 100_000 }), abort.signal)))
    for (let i = 0; i < turns; i++) await turn()
    abort.abort()
    expect(await run).toBe('aborted')
    await settle()
    expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: 8 })
    await client.close()
  })

  test('an abort drops events that were not read yet', async () => {
    const { client } = await setUp()
    const abort = new AbortController()
    const events = client.generate(requestOf({ maxTokens: 100_000 }), abort.signal)
    await settle()
    abort.abort()
    const collected = new Collected()
    const read = async () => {
      for await (const event of events) collected.add([event])
    }
    expect(await codeOf(read())).toBe('aborted')
    expect(collected.events).toEqual([])
    await client.close()
  })

  test('an aborted signal starts nothing', async () => {
    const { client, engine } = await setUp()
    const events = client.generate(requestOf(), AbortSignal.abort())
    expect(await codeOf(collect(events))).toBe('aborted')
    await settle()
    expect(engine.stats.steps).toBe(0)
    await client.close()
  })

  test('the id of a cancelled request can be reused at once', async () => {
    const { client } = await setUp()
    const abort = new AbortController()
    const first = codeOf(collect(client.generate(requestOf({ maxTokens: 1000 }), abort.signal)))
    await settle()
    abort.abort()
    const again = requestOf({ prompt: promptOf(50), maxTokens: 9 })
    expect((await collect(client.generate(again))).answer('a')).toEqual(soloAnswer(again))
    expect(await first).toBe('aborted')
    await client.close()
  })

  test('refusals are thrown where the events are read', async () => {
    const { client } = await setUp({ numSlots: 1 }, { maxWaiting: 1 })
    expect(await codeOf(collect(client.generate(requestOf({ n: 2 }))))).toBe('too_large')
    const ids = ['a', 'b', 'c']
    const codes = ids.map((id) => codeOf(collect(client.generate(requestOf({ id, maxTokens: 30 })))))
    expect(await Promise.all(codes)).toEqual(['nothing thrown', 'nothing thrown', 'queue_full'])
    await client.close()
  })

  test('a reader that pauses causes few events, and loses nothing', async () => {
    const { client, engine } = await setUp()
    const request = requestOf({ n: 2, maxTokens: 500, logprobs: 1 })
    const events = client.generate(request)
    while (engine.stats.finishedLength < 2) await turn()
    await settle()
    const collected = await collect(events)
    const types = collected.events.map(({ type }) => type)
    expect([types[0], ...new Set(types)]).toEqual(['prompt', 'prompt', 'text', 'finish'])
    expect(types.length).toBeLessThan(25)
    for (const index of [0, 1]) {
      expect(collected.answer('a', index)).toEqual(soloAnswer(request, index))
    }
    await client.close()
  })

  test('an error in a step reaches every reader, after the earlier events', async () => {
    const { client, runner } = await setUp()
    const collected = new Collected()
    const read = async () => {
      for await (const event of client.generate(requestOf({ maxTokens: 1000 }))) {
        collected.add([event])
        runner.onStep = () => {
          if (runner.log.length > 5) throw new Error('bus error')
        }
      }
    }
    expect(await codeOf(read())).toBe('internal')
    expect(collected.events.length).toBeGreaterThan(4)
    expect(await codeOf(collect(client.generate(requestOf({ id: 'b' }))))).not.toBe('nothing thrown')
    await client.close()
  })

  test('closing fails all running requests', async () => {
    const { client, runner } = await setUp()
    const run = codeOf(collect(client.generate(requestOf({ maxTokens: 100_000 }))))
    await settle()
    await client.close()
    expect(['aborted', 'model_not_loaded']).toContain(await run)
    expect(runner.isDisposed).toBe(true)
    await client.close()
  })
})

describe('worker', () => {
  test('one message per step, with all its events', async () => {
    const { client, worker, runner } = await setUpRemote()
    const ids = ['a', 'b', 'c', 'd']
    await Promise.all(ids.map((id) => collect(client.generate(requestOf({ id, n: 2, maxTokens: 30 })))))
    await settle()
    const steps = worker.sent.filter((message) => message.type === 'step')
    expect(steps.length).toBe(runner.log.length)
    expect(Math.max(...steps.map(({ events }) => events.length))).toBeGreaterThan(7)
    await client.close()
  })

  test('death of the worker throws model_not_loaded, with the reason', async () => {
    const { client, worker } = await setUpRemote()
    const failure = collect(client.generate(requestOf({ maxTokens: 100_000 }))).catch((e) => e)
    await settle()
    worker.end('signal SIGKILL')
    expect((await failure).message).toContain('ended (signal SIGKILL); it is being restarted; retry')
    expect((await failure).code).toBe('model_not_loaded')
    expect(await codeOf(collect(client.generate(requestOf())))).toBe('model_not_loaded')
  })

  test('a request that cannot be sent is refused, and no other request ends', async () => {
    const { client, gateway } = await setUpRemote()
    const send = gateway.send
    gateway.send = () => {
      throw new Error('cannot be cloned')
    }
    await expect(client.call('sessions.list', { tenant: '' })).rejects.toThrow('cannot be cloned')
    gateway.send = send
    expect((await collect(client.generate(requestOf({ maxTokens: 2 })))).events.length).toBe(4)
    await client.close()
  })

  test('death while loading rejects connect', async () => {
    const [gateway, worker] = channelPair<ToWorker, FromWorker>()
    const connecting = RemoteEngineClient.connect(gateway)
    worker.send({ type: 'progress', doneBytes: 1, totalBytes: 2 })
    worker.end('exit code 1')
    await expect(connecting).rejects.toThrow('while it was loading (exit code 1)')
  })

  test('a fatal message while loading rejects connect with its error', async () => {
    const [gateway, worker] = channelPair<ToWorker, FromWorker>()
    const progress: number[] = []
    const connecting = RemoteEngineClient.connect(gateway, (done, total) => progress.push(done, total))
    worker.send({ type: 'progress', doneBytes: 1, totalBytes: 2 })
    worker.send({ type: 'fatal', error: { code: 'corrupt_weights', message: 'no tensors' } })
    expect(await codeOf(connecting)).toBe('corrupt_weights')
    expect(progress).toEqual([1, 2])
  })

  test('progress of loading is reported as it happens', async () => {
    const [gateway, worker] = channelPair<ToWorker, FromWorker>()
    const stages: string[] = []
    const connecting = RemoteEngineClient.connect(gateway, undefined, (text) => stages.push(text))
    worker.send({ type: 'stage', text: 'opening the device' })
    worker.send({ type: 'stage', text: 'recording the model' })
    worker.end('exit code 1')
    await expect(connecting).rejects.toThrow('while it was loading')
    expect(stages).toEqual(['opening the device', 'recording the model'])
  })

  test('loss of the gateway ends the worker with 0 and frees the runner', async () => {
    const { client, gateway, exitCode, runner } = await setUpRemote()
    const run = codeOf(collect(client.generate(requestOf({ maxTokens: 100_000 }))))
    await settle()
    gateway.end('the gateway has gone')
    expect(await exitCode).toBe(0)
    expect(runner.isDisposed).toBe(true)
    expect(await run).toBe('model_not_loaded')
  })

  test('a broken step ends the worker with 1 and a fatal message', async () => {
    const { client, worker, runner, exitCode } = await setUpRemote()
    runner.onStep = () => {
      throw new SkeinError('kernel_failed', 'illegal address')
    }
    expect(await codeOf(collect(client.generate(requestOf())))).toBe('kernel_failed')
    expect(await exitCode).toBe(1)
    expect(worker.sent).toContainEqual({ type: 'fatal', error: { code: 'kernel_failed', message: 'illegal address' } })
  })

  test('a broken step lets requests that still wait be repeated', async () => {
    const { client, runner } = await setUpRemote()
    const open = Array.from({ length: 12 }, (_, i) => codeOf(collect(client.generate(requestOf({ id: `${i}` })))))
    runner.onStep = () => {
      throw new SkeinError('kernel_failed', 'illegal address')
    }
    const codes = await Promise.all(open)
    const { numSlots } = client.info
    const begun = codes.slice(0, numSlots).map(() => 'kernel_failed')
    expect(codes).toEqual([...begun, ...codes.slice(numSlots).map(() => 'model_not_loaded')])
    expect(numSlots).toBeLessThan(12)
  })

  test('a request that is repeated as soon as its error comes, or was on its way, may be repeated again', async () => {
    const { client, runner } = await setUpRemote({ numSlots: 1 })
    const first = codeOf(collect(client.generate(requestOf({ id: 'runs' }))))
    const again = codeOf(collect(client.generate(requestOf({ id: 'waits' })))).then(() =>
      codeOf(collect(client.generate(requestOf({ id: 'waits' })))),
    )
    let onItsWay: Promise<string> | null = null
    runner.onStep = () => {
      onItsWay = codeOf(collect(client.generate(requestOf({ id: 'late' }))))
      throw new SkeinError('kernel_failed', 'illegal address')
    }
    expect(await first).toBe('kernel_failed')
    expect(await again).toBe('model_not_loaded')
    expect(await onItsWay).toBe('model_not_loaded')
  })

  test('of a session of a broken engine others are told when its states are saved', async () => {
    const { client, engine, gateway, runner } = await setUpRemote()
    const order: string[] = []
    let goOn = () => {}
    const close = engine.close.bind(engine)
    engine.close = async () => {
      await new Promise<void>((resolve) => {
        goOn = resolve
      })
      order.push('saved')
      await close()
    }
    gateway.onClose(() => order.push('closed'))
    runner.onStep = () => {
      throw new SkeinError('kernel_failed', 'illegal address')
    }
    expect(await codeOf(collect(client.generate(requestOf())))).toBe('kernel_failed')
    const asked = codeOf(client.call('sessions.release', { tenant: '', id: 'a' })).then((code) => order.push(code))
    await settle()
    expect(order).toEqual([])
    goOn()
    await asked
    expect(order).toEqual(['saved', 'closed', 'model_not_loaded'])
  })

  test('draining finishes running requests, refuses new ones, then ends', async () => {
    const { client, gateway, exitCode, runner } = await setUpRemote()
    const request = requestOf({ maxTokens: 60 })
    const run = collect(client.generate(request))
    await settle()
    gateway.send({ type: 'shutdown', drain: true })
    const late = codeOf(collect(client.generate(requestOf({ id: 'late' }))))
    expect(await late).toBe('model_not_loaded')
    expect((await run).answer('a')).toEqual(soloAnswer(request))
    expect(await exitCode).toBe(0)
    expect(runner.isDisposed).toBe(true)
  })

  test('draining without running requests, or requested twice, ends at once', async () => {
    const idle = await setUpRemote()
    idle.gateway.send({ type: 'shutdown', drain: true })
    expect(await idle.exitCode).toBe(0)
    const busy = await setUpRemote()
    const run = codeOf(collect(busy.client.generate(requestOf({ maxTokens: 1e9 }))))
    await settle()
    busy.gateway.send({ type: 'shutdown', drain: true })
    await settle()
    busy.gateway.send({ type: 'shutdown' })
    expect(await busy.exitCode).toBe(0)
    expect(await run).toBe('model_not_loaded')
  })
})

test('while large results wait to be read, requests that make more of them pause, and others go on', async () => {
  const { engine } = setUpEngine({ numSlots: 8 }, {})
  const [gateway, worker] = channelPair<ToWorker, FromWorker>()
  const connecting = RemoteEngineClient.connect(gateway)
  let read: (() => void) | null = () => {}
  const reading = new Promise<void>((resolve) => {
    read = resolve
  })
  void serveEngine(engine, Object.assign(worker, { largeRoom: () => (read === null ? null : reading) }))
  const client = await connecting
  const scored = requestOf({ id: 'scored', prompt: promptOf(5), maxTokens: 9, logprobs: 2 })
  const echoed = requestOf({ id: 'echoed', prompt: promptOf(9), maxTokens: 1, promptLogprobs: 1 })
  const plain = requestOf({ id: 'plain', prompt: promptOf(7), maxTokens: 40 })
  const late = [scored, echoed].map((request) => collect(client.generate(request)))
  expect((await collect(client.generate(plain))).answer('plain', 0)).toEqual(soloAnswer(plain))
  await settle()
  expect(engine.stats).toMatchObject({ running: 2, lastBatchTokens: 1 })
  const { steps } = engine.stats
  await settle()
  expect(engine.stats.steps).toBe(steps)
  // Those that come meanwhile go on, too.
  expect((await collect(client.generate(plain))).answer('plain', 0)).toEqual(soloAnswer(plain))
  const resolve = read
  read = null
  resolve()
  const [first, second] = await Promise.all(late)
  expect(first!.answer('scored', 0)).toEqual(soloAnswer(scored))
  expect(second!.answer('echoed', 0)).toEqual(soloAnswer(echoed))
  await client.close()
})

test('finished requests are forgotten', async () => {
  const queues = new LiveQueues()
  const add = (id: string) => {
    const queue = new EventQueue(1, () => queues.remove(id, queue))
    queues.add(id, id, queue)
    return queue
  }
  add('finished')
  add('failed')
  const left = add('left')
  const finish = { type: 'finish', index: 0, reason: 'length', matched: null } as const
  queues.deliver([{ ...finish, id: 'finished', completionTokens: 1 }])
  queues.deliver([{ type: 'error', id: 'failed', error: { code: 'internal', message: '' } }])
  queues.deliver([{ ...finish, id: 'unknown', completionTokens: 1 }])
  expect(queues.size).toBe(1)
  await left.return()
  expect(queues.size).toBe(0)
})

test('the end of one request is not taken for that of another with the same client id', async () => {
  const queues = new LiveQueues()
  const add = (engineId: string, callerId: string) => {
    const queue = new EventQueue(1, () => {})
    queues.add(engineId, callerId, queue)
    return queue
  }
  add('1', '2')
  const other = add('2', 'b')
  const finish = { type: 'finish', index: 0, reason: 'length', matched: null } as const
  queues.deliver([{ ...finish, id: '1', completionTokens: 1 }])
  expect(queues.size).toBe(1)
  queues.deliver([{ ...finish, id: '2', completionTokens: 7 }])
  expect(queues.size).toBe(0)
  expect(await other.next()).toMatchObject({ value: { id: 'b', completionTokens: 7 } })
})

test('whoever has one request is woken before the many of another', async () => {
  const queues = new LiveQueues(2)
  const woken: string[] = []
  const tenantOf = (id: string) => (id === 'z' ? 'few' : 'many')
  const ids = [...'abcdefz']
  for (const id of ids) {
    const queue = new EventQueue(1, () => {})
    queues.add(id, id, queue, tenantOf(id))
    void queue.next().then(() => woken.push(id))
  }
  queues.deliver(ids.map((id) => ({ type: 'text', id, index: 0, text: id, tokens: [1], logprobs: null })))
  for (let i = 0; i < 5; i++) await Promise.resolve()
  expect(woken).toEqual(['a', 'z'])
  while (woken.length < ids.length) await new Promise((resolve) => setImmediate(resolve))
  expect(woken).toEqual([...'azbcdef'])
})

test('consumers are woken a few at a time, and get what has arrived meanwhile at once', async () => {
  const queues = new LiveQueues(2)
  const ids = ['a', 'b', 'c', 'd', 'e']
  const log: string[] = []
  const follow = async (id: string) => {
    const queue = new EventQueue(1, () => {})
    queues.add(id, id, queue)
    for await (const event of queue) log.push(event.type === 'text' ? id + event.text : id)
  }
  const all = ids.map(follow)
  const turn = () => new Promise((resolve) => setImmediate(resolve))
  const step = (text: string) => {
    const token = { type: 'text', index: 0, text, tokens: [1], logprobs: null } as const
    queues.deliver(ids.map((id) => ({ ...token, id })))
  }
  await turn()
  step('1')
  await Promise.resolve().then(() => {})
  const first = [...log]
  step('2')
  await turn()
  const second = [...log]
  await turn()
  await turn()
  const finish = { type: 'finish', index: 0, reason: 'length', matched: null } as const
  queues.deliver(ids.map((id) => ({ ...finish, id, completionTokens: 2 })))
  await Promise.all(all)
  expect({ first, second: second.slice(2), rest: log.slice(4, 7) }).toMatchInlineSnapshot(`
    {
      "first": [
        "a1",
        "b1",
      ],
      "rest": [
        "e12",
        "a2",
        "b2",
      ],
      "second": [
        "c12",
        "d12",
      ],
    }
  `)
  expect(log.filter((entry) => entry.length === 1)).toEqual(ids)
})

test('a consumer that falls too far behind loses its request', async () => {
  const top = Array.from({ length: 20 }, (_, token) => ({ token, logprob: -1 }))
  const topBytes = top.map(() => Uint8Array.of(65))
  const entry = { token: 1, logprob: -1, bytes: Uint8Array.of(65), top, topBytes }
  const text = { type: 'text', id: 'r', index: 0, text: 'A', tokens: [1] } as const
  let numCancelled = 0
  const open = () => new EventQueue(1, () => numCancelled++)

  const plain = open()
  for (let i = 0; i < 12_000; i++) plain.push({ ...text, text: 'word', logprobs: null })
  expect(plain.isOver).toBe(false)
  for (let i = 0; i < 12_000; i++) plain.push({ ...text, text: 'word', logprobs: null })
  expect(plain.isOver).toBe(true)
  numCancelled = 0

  const read = open()
  for (let i = 0; i < 5000; i++) {
    read.push({ ...text, logprobs: [entry] })
    if (i % 8 === 0) await read.next()
  }
  expect(read.isOver).toBe(false)

  const behind = open()
  let numRecent = 0
  while (!behind.isOver && numRecent < 5000) {
    behind.push({ ...text, logprobs: [entry] })
    numRecent++
  }
  expect(numRecent).toBeGreaterThan(300)
  expect(numRecent).toBeLessThan(1000)
  expect(numCancelled).toBe(1)
  await expect(behind.next()).rejects.toMatchObject({ code: 'aborted' })
  expect((await behind.next()).done).toBe(true)
})

test('a tenant whose own requests fill its part is refused without asking the worker; another tenant is not', async () => {
  const { client, gateway } = await setUpRemote({ numSlots: 1 }, { maxWaiting: 2 })
  const long = (id: string, tenant: string) => requestOf({ id, tenant, maxTokens: 100_000 })
  const leaving = new AbortController()
  const held = ['a', 'b', 'c'].map((id) => codeOf(collect(client.generate(long(id, 'x'), leaving.signal))))
  const asked = () => gateway.sent.filter(({ type }) => type === 'generate').length
  expect(asked()).toBe(3)
  expect(await codeOf(collect(client.generate(long('d', 'x'))))).toBe('queue_full')
  expect(asked()).toBe(3)
  const other = new AbortController()
  const others = codeOf(collect(client.generate(long('e', 'y'), other.signal)))
  expect(asked()).toBe(4)
  other.abort()
  leaving.abort()
  expect(await Promise.all([...held, others])).toEqual(Array(4).fill('aborted'))
  // They have left, so there is room again.
  expect((await collect(client.generate(requestOf({ id: 'f', tenant: 'x' })))).events.length).toBeGreaterThan(0)
  expect(asked()).toBe(5)
  await client.close()
})

test('the rows of a call that is aborted are cancelled by one message', async () => {
  const { client, gateway, engine } = await setUpRemote()
  const sent: ToWorker[] = []
  const send = gateway.send.bind(gateway)
  gateway.send = (message) => {
    sent.push(message)
    send(message)
  }
  const leaving = new AbortController()
  const rows = Array.from({ length: 20 }, (_, i) =>
    codeOf(collect(client.generate(requestOf({ id: `${i}`, maxTokens: 100_000 }), leaving.signal))),
  )
  await settle()
  leaving.abort()
  expect(new Set(await Promise.all(rows))).toEqual(new Set(['aborted']))
  await settle()
  expect(sent.filter(({ type }) => type === 'cancel')).toMatchObject([{ ids: { length: 20 } }])
  expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: 8 })
  await client.close()
})
